"""Teaching through the server: staging, lessons in the background, undo, and who may."""

import gc
import hmac
import io
import json
import math
import sys
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from dafuse.data.images import REDUCED_PIXELS
from dafuse.product.classifier import Classifier
from dafuse.product.server import batching
from dafuse.product.server.app import create_app
from dafuse.product.server.lessons import LessonProgress
from dafuse.product.server.security import Access, Limits
from dafuse.product.server.staging import Staging
from dafuse.product.server.uploads import Sent, Upload
from dafuse.progress import Progress
from dafuse.taught.table import METHODS
from helpers.image_plug_ins import HEIC
from helpers.product_models import QUICK, create, taught
from helpers.served_apps import (
    BEARER,
    TOKEN,
    client,
    ended,
    files,
    grey,
    learned,
    lesson,
    png,
    said,
    teachable,
    wait_for,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("small_network")


def test_learn_by_the_api_then_predict_then_undo(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 6, 1: 6})
    with teachable(classifier) as served:
        assert served.get("/learn", headers=BEARER).json()["state"] == "idle"
        assert served.get("/classes").json()["last_step"] is None
        new = lesson({2: 6, 3: 6}, seed=1)
        job = learned(served, new)
        assert (job["state"], job["error"], job["progress"]) == ("done", None, 1)
        assert job["pictures"] == {"class 2": 6, "class 3": 6}
        assert [one["name"] for one in job["report"]["classes"]] == ["class 2", "class 3"]
        assert job["report"]["tested"] == 12
        assert any("left out in turn" in line for line in job["report"]["lines"])
        knows = served.get("/classes").json()
        assert knows["classes"] == [f"class {i}" for i in range(4)]
        assert knows["staged"] == {}
        assert [one["images"] for one in knows["records"]] == [6, 6, 6, 6]
        assert knows["last_step"]["what"].startswith("learned class 2 (6), class 3 (6)")
        top = served.post("/predict?top=9", files=files(new["class 2"][0])).json()
        assert len(top["predictions"][0]["top"]) == 4
        undone = served.post("/undo", headers=BEARER)
        assert undone.json()["undone"] == knows["last_step"]
        assert undone.json()["classes"] == ["class 0", "class 1"]
        refused = served.post("/undo", headers=BEARER)
        assert refused.status_code == 409
        assert "nothing to undo" in said(refused)
    assert Classifier.open(tmp_path / "model").classes == ["class 0", "class 1"]


def test_a_lesson_may_do_without_mirrored_pictures(tmp_path: Path) -> None:
    classifier = create(tmp_path / "model", **QUICK)
    with teachable(classifier) as served:
        learned(served, lesson({0: 3, 1: 3}))
        assert classifier.version.step["flip"] is True
        assert served.get("/classes").json()["flip"] is True
        assert learned(served, lesson({2: 3, 3: 3}), flip=False)["state"] == "done"
        assert classifier.version.step["flip"] is False
        assert served.get("/classes").json()["flip"] is False
        learned(served, lesson({4: 3}))  # as the one before
        assert classifier.version.step["flip"] is False
        learned(served, lesson({5: 3}), flip=True)
        assert served.get("/classes").json()["flip"] is True
        refused = served.post("/learn?flip=sideways", headers=BEARER)
        assert refused.status_code == 422
        assert said(refused).startswith("flip: ")
        asked = served.get("/openapi.json").json()["paths"]["/learn"]["post"]["parameters"]
        assert [(one["name"], one["required"]) for one in asked] == [("flip", False)]
        assert "letters" in asked[0]["description"]
        assert "letters" in served.get("/docs").text


def test_flip_is_refused_where_the_method_does_not_train(tmp_path: Path) -> None:
    with teachable(create(tmp_path / "model")) as served:
        assert served.get("/classes").json()["flip"] is None
        sent = lesson({0: 3, 1: 3})
        for name, contents in sent.items():
            served.post(f"/classes/{name}/images", files=files(*contents), headers=BEARER)
        for flip in ("true", "false"):
            refused = served.post(f"/learn?flip={flip}", headers=BEARER)
            assert refused.status_code == 422
            assert "methods that train" in said(refused)
        assert served.get("/classes").json()["staged"] == {"class 0": 3, "class 1": 3}
        assert learned(served, {})["state"] == "done"  # what waited is not lost


def test_flip_is_offered_where_adapters_are_trained(tmp_path: Path) -> None:
    """Its settings, not its name, say whether lift trains."""
    with teachable(create(tmp_path / "model", tune="first")) as served:
        assert served.get("/classes").json()["flip"] is True
        refused = served.post("/learn?flip=false", headers=BEARER)
        assert refused.status_code == 409
        assert "no images wait" in said(refused)  # and nothing against flip


TRAINS = {  # or may: it reads the images itself
    "lift": False,
    "simplecil": False,
    "daf": True,
    "ranpac": True,
    "layup": True,
    "klda": True,
    "anacp": True,
}


@pytest.mark.parametrize("method", list(METHODS))
def test_a_lesson_of_any_method(tmp_path: Path, method: str) -> None:
    settings = QUICK if method == "daf" else {"method": method}
    with teachable(create(tmp_path / "model", **settings)) as served:
        assert learned(served, lesson({0: 6, 1: 6}))["state"] == "done"
        job = learned(served, lesson({1: 3, 2: 6}, seed=1))
        assert job["state"] == "done"
        assert [one["new"] for one in job["report"]["classes"]] == [False, True]
        knows = served.get("/classes").json()
        assert knows["classes"] == ["class 0", "class 1", "class 2"]
        assert knows["flip"] == (True if TRAINS[method] else None)
        asked = served.post("/predict?top=9", files=files(grey(1))).json()
        assert len(asked["predictions"][0]["top"]) == 3


def test_undo_waits_for_nobody_and_tells_what_it_undid(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 6, 1: 6})
    other = Classifier.open(tmp_path / "model", device="cpu")
    with teachable(classifier) as served:
        with other.folder.changing(Progress()):
            refused = served.post("/undo", headers=BEARER)
        assert refused.status_code == 409
        assert "another process is changing the model" in said(refused)
        other.rename("class 0", "zero")
        undone = served.post("/undo", headers=BEARER).json()
    assert undone["undone"]["what"] == "renamed class 0 to zero"
    assert undone["classes"] == ["class 0", "class 1"]


def test_undo_of_a_version_undoes_no_other(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 6, 1: 6})
    classifier.rename("class 0", "zero")
    other = Classifier.open(tmp_path / "model", device="cpu")

    def undo(version: str) -> httpx.Response:
        return served.post("/undo", params={"version": version}, headers=BEARER)

    with teachable(classifier) as served:
        shown = served.get("/classes").json()
        assert shown["last_step"]["what"] == "renamed class 0 to zero"
        other.undo()
        other.rename("class 1", "one")  # it has the number of the step that was shown
        refused = undo(shown["version"])
        assert refused.status_code == 409
        assert said(refused).startswith("nothing was undone: the model was changed")
        assert "renamed class 1 to one" in said(refused)
        assert served.get("/classes").json()["classes"] == ["class 0", "one"]
        other.rename("one", "1")
        assert undo("2").status_code == 409  # by number, as a script has it
        assert undo("3").json()["undone"]["what"] == "renamed one to 1"
        now = served.get("/classes").json()["version"]
        assert undo(now).json()["undone"]["what"] == "renamed class 1 to one"
        assert "nothing to undo" in said(undo("1"))
    assert Classifier.open(tmp_path / "model").classes == ["class 0", "class 1"]


def test_a_step_that_comes_after_the_look_at_the_version_is_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = taught(tmp_path / "model", {0: 6, 1: 6})
    other = Classifier.open(tmp_path / "model", device="cpu")
    classifier.rename("class 0", "zero")
    monkeypatch.setattr(classifier, "follow", lambda: None)  # it is not looked at again
    with teachable(classifier) as served:
        other.rename("class 1", "one")
        refused = served.post("/undo?version=2", headers=BEARER)
        assert refused.status_code == 409
        assert "nothing was undone" in said(refused)
    assert Classifier.open(tmp_path / "model").classes == ["zero", "one"]


def test_a_lesson_that_waits_for_another_process_says_so(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 5, 1: 5})
    other = Classifier.open(tmp_path / "model", device="cpu")

    def waiting_for() -> str | None:
        return served.get("/learn", headers=BEARER).json()["waiting_for"]

    with teachable(classifier) as served:
        assert waiting_for() is None
        for name, contents in lesson({2: 5, 3: 5}).items():
            served.post(f"/classes/{name}/images", files=files(*contents), headers=BEARER)
        with other.folder.changing(Progress()):
            served.post("/learn", headers=BEARER)
            assert wait_for(waiting_for) == "another process that is changing this model"
            job = served.get("/learn", headers=BEARER).json()
            assert (job["state"], job["progress"], job["seconds_left"]) == ("running", 0, None)
            assert str(tmp_path) not in json.dumps(job)
        job = ended(served)
        assert (job["state"], job["waiting_for"]) == ("done", None)
        assert len(served.get("/classes").json()["classes"]) == 4


def test_a_server_that_ends_breaks_off_a_lesson_that_waits(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 5, 1: 5})
    other = Classifier.open(tmp_path / "model", device="cpu")
    app = create_app(classifier, Access(TOKEN), Limits(), learn=True)
    with other.folder.changing(Progress()):
        with client(app) as served:
            for name, contents in lesson({2: 5, 3: 5}).items():
                served.post(f"/classes/{name}/images", files=files(*contents), headers=BEARER)
            served.post("/learn", headers=BEARER)
            job = app.state.service.lessons.job
            wait_for(lambda: job.progress.waiting_for)
        assert job.state == "running"  # it cannot be woken, but the server did not wait for it
    wait_for(lambda: app.state.service.lessons.stop(0))
    assert "stopped" in job.error
    assert job.progress.phase == ""  # it did not begin


def test_time_spent_waiting_is_no_measure_of_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 1000.0, 1010.0, 1030.0])
    time = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("dafuse.product.server.lessons.time", time)
    progress = LessonProgress()  # at 0
    progress.waits("for another")
    progress.goes_on()
    with progress.bar("features", 4) as bar:  # at 1000
        bar.advance()
        assert progress.fraction == pytest.approx(0.25)
        assert progress.seconds_left == pytest.approx(10 * 0.75 / 0.25)  # at 1010
        bar.advance(9)
        assert progress.fraction == 1
        assert progress.seconds_left == 0


def test_it_can_start_with_nothing(tmp_path: Path) -> None:
    with teachable(create(tmp_path / "model")) as served:
        assert served.get("/classes").json()["classes"] == []
        asked = served.post("/predict", files=files(grey(1)))
        assert asked.status_code == 409
        assert "learned nothing yet" in said(asked)
        assert served.post("/undo", headers=BEARER).status_code == 409
        assert learned(served, lesson({0: 5, 1: 5}))["state"] == "done"
        assert served.post("/predict", files=files(grey(1))).status_code == 200
        report = learned(served, lesson({2: 1, 3: 12}))["report"]
        assert [one["images"] for one in report["classes"]] == [1, 12]
        assert any("class 2 (1 image)" in line for line in report["lines"])  # few to be sure
        assert not any("class 3 (12 images)" in line for line in report["lines"])
        assert learned(served, lesson({4: 1}))["state"] == "done"
        assert len(served.get("/classes").json()["classes"]) == 5


def test_teaching_needs_the_token_and_to_be_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    constant_time = hmac.compare_digest

    def watched(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return constant_time(a, b)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    routes = [
        ("POST", "/classes/a/images"),
        ("DELETE", "/classes/a/images"),
        ("POST", "/learn"),
        ("GET", "/learn"),
        ("POST", "/undo"),
        ("DELETE", "/classes/a"),
        ("POST", "/classes/a/rename?to=b"),
        ("GET", "/export"),
    ]
    classifier = taught(tmp_path / "model", {0: 5, 1: 5})
    with client(create_app(classifier, Access(TOKEN))) as served:
        for method, path in routes:
            refused = served.request(method, path, headers=BEARER)
            assert refused.status_code == 403
            assert "--allow-learn" in said(refused)
    with teachable(classifier) as served:
        for method, path in routes:
            for header in (None, "", "Bearer", f"Basic {TOKEN}", TOKEN):
                headers = {} if header is None else {"Authorization": header}
                refused = served.request(method, path, headers=headers)
                assert refused.status_code == 401
                assert "a token is needed" in said(refused)
                assert refused.headers["www-authenticate"] == "Bearer"
            assert not compared
            for wrong in ("x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "Ã¼".encode("latin-1")):
                bearer = wrong if isinstance(wrong, bytes) else wrong.encode()
                refused = served.request(
                    method, path, headers=[(b"authorization", b"Bearer " + bearer)]
                )
                assert refused.status_code == 401
                assert "not the server's token" in said(refused)
            assert len(compared) == 5
            assert all(own == TOKEN.encode() for _, own in compared)
            compared.clear()
        assert served.post("/predict", files=files(grey(1))).status_code == 200


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("%20", "empty"),
        ("%1B[31m", "can be shown"),
        (" a", "space"),
        ("x" * 81, "at most 80"),
        ("a%0Ab", "one line"),
        ("a\\b", "slashes"),
        ("Unknown", "choose another"),
        ("CLASS 0", "differ only in case"),
        ("STAGED", "differ only in case"),
    ],
)
def test_class_names_that_cannot_be(tmp_path: Path, name: str, sentence: str) -> None:
    with teachable(taught(tmp_path / "model", {0: 3, 1: 3})) as served:
        sent = served.post("/classes/staged/images", files=files(grey(1)), headers=BEARER)
        assert sent.json() == {"name": "staged", "staged": 1, "skipped": []}
        refused = served.post(f"/classes/{name}/images", files=files(grey(1)), headers=BEARER)
        assert refused.status_code == 422
        assert sentence in said(refused)
        assert served.get("/classes").json()["staged"] == {"staged": 1}


def test_staging_has_a_limit_and_can_be_taken_back(tmp_path: Path) -> None:
    with teachable(create(tmp_path / "model"), staged=5) as served:

        def stage(*contents: bytes) -> httpx.Response:
            return served.post("/classes/ä b/images", files=files(*contents), headers=BEARER)

        assert stage(grey(1), grey(2), grey(3)).json()["staged"] == 3
        refused = stage(grey(4), grey(5), grey(6))
        assert refused.status_code == 413
        assert "of at most 5" in said(refused)
        assert stage(grey(4), grey(5)).json()["staged"] == 5
        dropped = served.delete("/classes/ä b/images", headers=BEARER)
        assert dropped.json() == {"name": "ä b", "staged": 0}
        refused = served.delete("/classes/ä b/images", headers=BEARER)
        assert refused.status_code == 404
        assert "no images of 'ä b'" in said(refused)
        refused = served.post("/learn", headers=BEARER)
        assert refused.status_code == 409
        assert "no images wait" in said(refused)
        assert served.get("/learn", headers=BEARER).json()["state"] == "idle"


def test_what_cannot_be_read_is_skipped_and_named(tmp_path: Path) -> None:
    with teachable(create(tmp_path / "model")) as served:

        def stage(**sent: bytes) -> httpx.Response:
            named = [("files", file) for file in sent.items()]
            return served.post("/classes/cat/images", files=named, headers=BEARER)

        some = stage(a=grey(1), b=b"no image", c=grey(2)[:45], d=grey(3))
        assert some.status_code == 201
        assert (some.json()["name"], some.json()["staged"]) == ("cat", 2)
        assert [line.split()[0] for line in some.json()["skipped"]] == ["b", "c"]
        none = stage(a=HEIC, b=b"no image")
        assert none.status_code == 422
        assert said(none) == "a cannot be read: HEIC needs a plug-in: pip install pillow-heif"
        assert [line.split()[0] for line in none.json()["skipped"]] == ["a", "b"]
        assert served.get("/classes").json()["staged"] == {"cat": 2}


class Held:
    """Stops lessons inside `learn` until they may go on."""

    def __init__(self, classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.images = threading.Event(), []  # type: ignore[var-annotated]
        learn = classifier.learn

        def held(images: Any, labels: Any, *, flip: bool | None, progress: Any) -> Any:
            self.images += [weakref.ref(image) for image in images]
            with progress.bar("train", 4) as bar:
                bar.advance()
                self.go_on.wait()
                bar.advance()
            return learn(images, labels, flip=flip, progress=progress)

        monkeypatch.setattr(classifier, "learn", held)


def test_predicting_goes_on_while_it_learns_and_one_lesson_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = taught(tmp_path / "model", {0: 5, 1: 5})
    held = Held(classifier, monkeypatch)
    with teachable(classifier) as served:
        for name, contents in lesson({2: 5, 3: 5}).items():
            served.post(f"/classes/{name}/images", files=files(*contents), headers=BEARER)
        started = served.post("/learn", headers=BEARER)
        assert started.status_code == 202
        assert started.headers["location"] == "/learn"
        assert started.json()["job"] == 1
        job = wait_for(
            lambda: (
                found
                if (found := served.get("/learn", headers=BEARER).json())["progress"]
                else None
            )
        )
        assert (job["state"], job["phase"]) == ("running", "train")
        assert job["progress"] == 0.25
        assert job["seconds_left"] > 0
        assert job["seconds"] > 0
        steps = (
            ("POST", "/learn"),
            ("POST", "/undo"),
            ("DELETE", "/classes/class 0"),
            ("POST", "/classes/class 0/rename?to=zero"),
            ("GET", "/export"),
        )
        for method, path in steps:
            refused = served.request(method, path, headers=BEARER)
            assert refused.status_code == 409
            assert "is being learned" in said(refused)
        asked = served.post("/predict?top=9", files=files(grey(1)))
        assert len(asked.json()["predictions"][0]["top"]) == 2
        later = served.post("/classes/class 4/images", files=files(grey(1)), headers=BEARER)
        assert later.status_code == 201  # for the next lesson
        assert "dafuse_learning 1" in served.get("/metrics").text
        held.go_on.set()
        assert ended(served)["state"] == "done"
        knows = served.get("/classes").json()
        assert len(knows["classes"]) == 4
        assert knows["staged"] == {"class 4": 1}
        assert len(held.images) == 10
        gc.collect()
        assert not any(image() is not None for image in held.images)  # the images are gone


def test_a_lesson_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = taught(tmp_path / "model", {0: 5, 1: 5})
    monkeypatch.setattr("dafuse.product.lesson.teach", lambda *_: 1 / 0)
    with teachable(classifier) as served:
        job = learned(served, lesson({2: 5, 3: 5}))
        assert job["state"] == "failed"
        assert "ZeroDivisionError" in job["error"]
        assert served.get("/classes").json()["staged"] == {"class 2": 5, "class 3": 5}
        monkeypatch.undo()
        served.post("/learn", headers=BEARER)
        assert ended(served)["job"] == 2
        assert 'dafuse_lessons_total{outcome="failed"} 1' in served.get("/metrics").text


def test_a_server_that_ends_breaks_off_its_lesson(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = taught(tmp_path / "model", {0: 5, 1: 5})
    before = (tmp_path / "model" / "model.json").read_bytes()
    held = Held(classifier, monkeypatch)
    app = create_app(classifier, Access(TOKEN), Limits(), learn=True)
    with client(app) as served:
        for name, contents in lesson({2: 5, 3: 5}).items():
            served.post(f"/classes/{name}/images", files=files(*contents), headers=BEARER)
        served.post("/learn", headers=BEARER)
    lessons = app.state.service.lessons
    job = lessons.job
    assert not lessons.stop(0)  # it waits in a step; the server did not wait for it
    lost = "the lesson was broken off, the model is as it was; 10 images not yet learned are gone"
    assert lessons.lost() == lost
    held.go_on.set()
    wait_for(lambda: lessons.stop(0))
    assert job.state == "failed"
    assert "stopped" in job.error
    assert lessons.lost() == lost  # and the images are counted once
    assert (tmp_path / "model" / "model.json").read_bytes() == before


def test_a_lesson_that_is_too_far_to_be_stopped_is_said_to_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = taught(tmp_path / "model", {0: 5, 1: 5})
    arrived, go_on, publish = threading.Event(), threading.Event(), classifier.folder.publish

    def held(version: Any) -> None:
        arrived.set()
        go_on.wait()
        publish(version)

    monkeypatch.setattr(classifier.folder, "publish", held)
    app = create_app(classifier, Access(TOKEN), Limits(), learn=True)
    with client(app) as served:
        for name, contents in lesson({2: 5, 3: 5}).items():
            served.post(f"/classes/{name}/images", files=files(*contents), headers=BEARER)
        served.post("/learn", headers=BEARER)
        assert arrived.wait(60)
        served.post("/classes/later/images", files=files(grey(1), grey(2)), headers=BEARER)
    go_on.set()
    lessons = app.state.service.lessons
    wait_for(lambda: lessons.stop(0))
    assert lessons.lost() == (
        "the lesson was finished, the model is at version 2; 2 images not yet learned are gone"
    )


def test_pictures_can_be_staged_by_many_threads_at_once() -> None:
    names = [f"class {number}" for number in range(1000)]
    pixels = np.zeros((8, 8, 3), np.uint8)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet in the middle of things
    try:
        for staging in (Staging(1000), Staging(1000), Staging(1000)):
            sent = Sent([Upload("small", grey(5), 64)])
            add = partial(staging.add, sent=sent, found=[pixels], known=[])
            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(add, names)) == [(1, [])] * 1000
            assert sorted(staging.counts) == sorted(names)
    finally:
        sys.setswitchinterval(interval)


def test_large_pictures_are_staged_smaller(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (4000, 3000), "navy").save(file, "JPEG")
    app = create_app(create(tmp_path / "model"), Access(TOKEN), learn=True)
    with client(app) as served:
        sent = files(file.getvalue(), grey(5))
        assert served.post("/classes/class/images", files=sent, headers=BEARER).status_code == 201
    large, small = app.state.service.lessons.staging.take()["class"]
    assert small.shape == (8, 8, 3)
    assert math.prod(large.shape[:2]) == pytest.approx(REDUCED_PIXELS, rel=0.01)
    assert large.shape[1] / large.shape[0] == pytest.approx(4 / 3, rel=0.01)
    assert abs(large.astype(int) - [0, 0, 128]).max() <= 2


def test_pictures_of_two_requests_are_decoded_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, go_on = [], threading.Event()

    def noted(pixels_HW3: np.ndarray) -> np.ndarray:
        decoded.append(int(pixels_HW3[0, 0, 0]))
        go_on.wait(60)
        return pixels_HW3

    monkeypatch.setattr(batching, "reduced", noted)
    with teachable(create(tmp_path / "model")) as served, ThreadPoolExecutor(2) as clients:

        def stage(*levels: int) -> int:
            sent = files(*[grey(level) for level in levels])
            path = f"{served.base_url}/classes/class/images"
            return httpx.post(path, files=sent, headers=BEARER, timeout=60).status_code

        first = clients.submit(stage, 1, 2, 3)
        wait_for(lambda: decoded)
        then = clients.submit(stage, 7)
        wait_for(lambda: "dafuse_undecoded_pictures 3" in served.get("/metrics").text)
        go_on.set()
        assert (first.result(), then.result()) == (201, 201)
    assert decoded.index(7) < decoded.index(3)


def test_a_photograph_taught_by_the_page_is_known_in_a_folder(tmp_path: Path) -> None:
    """The other way round holds, too: the page keeps large images reduced."""
    photos = tmp_path / "photos"
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (photos / name).mkdir(parents=True)
        noise = Image.fromarray(rng.integers(0, 256, (90, 120, 3), dtype=np.uint8))
        noise.resize((1200, 900)).save(photos / name / "photo.jpg")
    classifier = create(tmp_path / "model")
    with teachable(classifier) as served:
        sent = {name: [(photos / name / "photo.jpg").read_bytes()] for name in ("a", "b")}
        assert learned(served, sent)["state"] == "done"
        report = classifier.learn(photos)
        assert (report.again, report.classes, report.version) == (2, [], 1)
        assert learned(served, {"a": sent["a"]})["report"]["again"] == 1


def test_no_picture_is_ever_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the form's parser nor Pillow nor a lesson writes one: only the model is written."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for name in ("TemporaryFile", "NamedTemporaryFile", "mkstemp"):
        monkeypatch.setattr(tempfile, name, None)  # what would be called to spool to the disk
    rng = np.random.default_rng(0)
    noise = [png(rng.integers(0, 256, (900, 900, 3), dtype=np.uint8)) for _ in range(4)]
    assert len(noise[0]) > 2 * 2**20  # what Starlette would spool
    with teachable(create(tmp_path / "model")) as served:
        assert learned(served, {"a": noise[:2], "b": noise[2:]})["state"] == "done"
        assert served.post("/predict", files=files(*noise)).status_code == 200
    assert not list(scratch.iterdir())
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in written} == {".json", ".safetensors", ""}
    assert [path.name for path in written if not path.suffix] == [".lock"]
    assert sum(path.stat().st_size for path in written) < len(noise[0]) / 2
    for path in written:
        if path.suffix == ".json":
            json.loads(path.read_text())
