"""Changing a model through the server: forget, rename, history and export, beside other steps."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from dafuse.product.classifier import Classifier
from dafuse.product.predictor import ExportedModel
from dafuse.product.server.app import create_app
from dafuse.product.server.security import Access
from dafuse.progress import Progress
from dafuse.taught.lift import TaughtLift
from helpers.product_models import create, pictures, taught
from helpers.served_apps import (
    BEARER,
    TOKEN,
    client,
    files,
    grey,
    learned,
    lesson,
    png,
    said,
    teachable,
)


@pytest.fixture
def classifier(tmp_path: Path, small_network: None) -> Classifier:
    return taught(tmp_path / "model", {0: 4, 1: 4}, {2: 4})


@pytest.fixture
def served(classifier: Classifier) -> Iterator[httpx.Client]:
    with teachable(classifier) as found:
        yield found


def known(served: httpx.Client) -> list[str]:
    found: list[str] = served.get("/classes").json()["classes"]
    return found


def history(served: httpx.Client) -> list[str]:
    return [step["what"] for step in served.get("/history").json()["steps"]]


def forget(served: httpx.Client, name: str, **query: str) -> httpx.Response:
    return served.delete(f"/classes/{name}", params=query, headers=BEARER)


def rename(served: httpx.Client, name: str, to: str) -> httpx.Response:
    return served.post(f"/classes/{name}/rename", params={"to": to}, headers=BEARER)


def test_classes_come_with_the_models_name_and_counts_and_times(
    served: httpx.Client, classifier: Classifier
) -> None:
    knows = served.get("/classes").json()
    assert knows["model"] == "model"
    assert [one["name"] for one in knows["records"]] == knows["classes"]
    assert [one["images"] for one in knows["records"]] == [4, 4, 4]
    assert knows["records"][0]["learned"] == classifier.version.classes[0].learned
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", knows["records"][0]["updated"])
    with client(create_app(classifier, name="pets.onnx")) as other:
        assert other.get("/classes").json()["model"] == "pets.onnx"


def test_forget_then_undo_brings_it_back(served: httpx.Client) -> None:
    forgot = forget(served, "class 1")
    assert forgot.json() == {
        "name": "class 1",
        "for_good": False,
        "versions": [],
        "remains": TaughtLift.remains,
        "classes": ["class 0", "class 2"],
        "total": 2,
    }
    asked = served.post("/predict?top=9", files=files(grey(1))).json()
    assert {one["name"] for one in asked["predictions"][0]["top"]} == {"class 0", "class 2"}
    assert served.post("/undo", headers=BEARER).json()["undone"]["what"] == "forgot class 1"
    assert known(served) == ["class 0", "class 1", "class 2"]


def test_forget_for_good_leaves_no_way_back_and_undo_is_not_offered(
    served: httpx.Client, classifier: Classifier
) -> None:
    forgot = forget(served, "class 2", for_good="true").json()
    assert (forgot["for_good"], forgot["versions"]) == (True, [1, 2])
    knows = served.get("/classes").json()
    assert (knows["classes"], knows["last_step"]) == (["class 0", "class 1"], None)
    told = served.get("/history").json()
    assert (len(told["steps"]), told["undoable"]) == (3, False)
    assert "class 2" not in str(told)
    refused = served.post("/undo", headers=BEARER)
    assert refused.status_code == 409
    assert "nothing to undo" in said(refused)
    assert str(classifier.folder.path) not in said(refused)  # where it lies is nobody's business
    rename(served, "class 0", "zero")
    assert served.get("/classes").json()["last_step"]["what"] == "renamed class 0 to zero"


def test_what_cannot_be_forgotten(served: httpx.Client) -> None:
    refused = forget(served, "nothing")
    assert (refused.status_code, said(refused)) == (404, "no class is called 'nothing'")
    assert forget(served, "nothing", for_good="true").status_code == 409
    assert forget(served, "class 0", for_good="perhaps").status_code == 422
    forget(served, "class 0")
    forget(served, "class 1")
    refused = forget(served, "class 2")
    assert refused.status_code == 409
    assert said(refused).startswith("these are all classes of model:")
    assert known(served) == ["class 2"]


def test_rename_takes_waiting_pictures_along(served: httpx.Client) -> None:
    staged = served.post("/classes/class 1/images", files=files(grey(1)), headers=BEARER)
    assert staged.status_code == 201
    renamed = rename(served, "class 1", "cafe\u0301")
    assert renamed.json()["name"] == "caf\u00e9"
    assert known(served) == ["class 0", "caf\u00e9", "class 2"]
    assert served.get("/classes").json()["staged"] == {"caf\u00e9": 1}
    assert learned(served, {})["state"] == "done"
    assert served.get("/classes").json()["records"][1]["images"] == 5


def test_a_name_that_only_case_tells_from_waiting_pictures_is_refused(
    served: httpx.Client, classifier: Classifier
) -> None:
    """Neither the model nor what waits is changed: no lesson would take both names."""
    for name in ("class 1", "dog"):
        served.post(f"/classes/{name}/images", files=files(grey(1)), headers=BEARER)
    as_added = said(served.post("/classes/Dog/images", files=files(grey(1)), headers=BEARER))
    for name in ("class 1", "class 0"):  # with and without images that wait
        refused = rename(served, name, "Dog")
        assert (refused.status_code, said(refused)) == (422, as_added)
        assert known(served) == ["class 0", "class 1", "class 2"]
        assert served.get("/classes").json()["staged"] == {"class 1": 1, "dog": 1}
    assert classifier.version.number == 2
    assert rename(served, "class 1", "dog").status_code == 200  # the same name: they are joined
    assert served.get("/classes").json()["staged"] == {"dog": 2}
    assert learned(served, {})["state"] == "done"


def test_a_rename_that_the_model_refuses_moves_no_waiting_pictures(served: httpx.Client) -> None:
    served.post("/classes/class 1/images", files=files(grey(1)), headers=BEARER)
    assert rename(served, "class 1", "class 2").status_code == 409
    assert served.get("/classes").json()["staged"] == {"class 1": 1}
    assert rename(served, "class 1", "CLASS 1").status_code == 200
    assert served.get("/classes").json()["staged"] == {"CLASS 1": 1}


@pytest.mark.parametrize(
    ("name", "to", "status", "sentence"),
    [
        ("nothing", "new", 404, "no class is called 'nothing'"),
        ("class 0", "class 1", 409, "there is a class 'class 1' already"),
        ("class 0", "CLASS 1", 409, "there is a class 'class 1' already"),
        ("class 0", "class 0", 409, "nothing to rename"),
        ("class 0", "Unknown", 422, "choose another name"),
        ("class 0", "a/b", 422, "slashes"),
        ("class 0", "", 422, "empty"),
    ],
)
def test_names_that_cannot_be_given(
    served: httpx.Client, name: str, to: str, status: int, sentence: str
) -> None:
    refused = rename(served, name, to)
    assert refused.status_code == status
    assert sentence in said(refused)
    assert known(served) == ["class 0", "class 1", "class 2"]


def test_a_new_name_must_be_sent(served: httpx.Client) -> None:
    refused = served.post("/classes/class 0/rename", headers=BEARER)
    assert refused.status_code == 422
    assert said(refused).startswith("to: ")


def test_history_has_every_step(served: httpx.Client, classifier: Classifier) -> None:
    rename(served, "class 0", "zero")
    forget(served, "class 1")
    found = history(served)
    assert found[0].startswith("learned class 0 (4), class 1 (4)")
    assert found[1].startswith("learned class 2 (4)")
    assert found[2:] == ["renamed class 0 to zero", "forgot class 1"]
    steps = served.get("/history").json()["steps"]
    assert [step["version"] for step in steps] == [1, 2, 3, 4]
    assert [step["did"] for step in steps] == ["learn", "learn", "rename", "forget"]
    assert steps[-1] == served.get("/classes").json()["last_step"]
    classifier.trim(1)
    assert history(served) == found
    assert served.get("/history").json()["undoable"] is False
    assert served.get("/classes").json()["last_step"] is None


def test_history_of_nothing_and_of_an_exported_file(
    tmp_path: Path, small_network: None, classifier: Classifier
) -> None:
    with teachable(create(tmp_path / "new")) as empty:
        assert empty.get("/history").json() == {"steps": [], "total": 0, "undoable": False}
        assert empty.get("/classes").json()["records"] == []
        refused = empty.get("/export", headers=BEARER)
        assert refused.status_code == 409
        assert "learned nothing yet" in said(refused)
    assert not (tmp_path / "new").exists()
    with client(create_app(classifier.model)) as exported:  # what answers, and no folder
        refused = exported.get("/history")
        assert refused.status_code == 404
        assert "exported file" in said(refused)


def test_the_exported_file_answers_as_the_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = taught(tmp_path / "Größe 1", {0: 4, 1: 4})  # on the embedded network
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    images, _ = pictures({0: 2, 1: 2}, seed=5)
    with teachable(classifier) as served:
        sizes = []
        for query in ("", "?int8=true"):
            sent = served.get(f"/export{query}", headers=BEARER)
            assert sent.status_code == 200
            assert sent.headers["content-length"] == str(len(sent.content))
            name = "attachment; filename*=UTF-8''Gr%C3%B6%C3%9Fe%201.onnx"
            assert sent.headers["content-disposition"] == name
            (tmp_path / "sent.onnx").write_bytes(sent.content)
            sizes.append(len(sent.content))
            model = ExportedModel(tmp_path / "sent.onnx", threads=1)
            assert model.classes == classifier.classes
            apart = np.abs(model.probabilities(images) - classifier.probabilities(images)).max()
            assert apart < (0.5 if query else 1e-4)
        assert sizes[1] < 0.6 * sizes[0]
        assert not list((tmp_path / "scratch").iterdir())  # nothing stays of it
        assert learned(served, lesson({2: 3}))["state"] == "done"  # the model was let go


def test_a_step_beside_another_process_is_refused(
    served: httpx.Client, classifier: Classifier
) -> None:
    other = Classifier.open(classifier.folder.path, device="cpu")
    with other.folder.changing(Progress()):
        for refused in (
            forget(served, "class 0"),
            rename(served, "class 0", "zero"),
            served.get("/export", headers=BEARER),
        ):
            assert refused.status_code == 409
            assert "another process is changing the model" in said(refused)
    other.rename("class 0", "zero")
    assert forget(served, "class 0").status_code == 404  # what it is now counts
    assert forget(served, "zero").status_code == 200
    assert served.post("/predict", files=files(png(pictures({1: 1})[0][0]))).status_code == 200
    assert history(served)[-2:] == ["renamed class 0 to zero", "forgot zero"]


def test_history_and_counts_need_no_token_on_this_machine_but_beyond(
    classifier: Classifier,
) -> None:
    with client(create_app(classifier, Access(TOKEN))) as served:
        assert len(history(served)) == 2
        assert served.get("/classes").json()["teaching"] is False
    with client(create_app(classifier, Access(TOKEN, everywhere=True))) as served:
        assert served.get("/history").status_code == 401
        assert served.get("/history", headers=BEARER).status_code == 200
