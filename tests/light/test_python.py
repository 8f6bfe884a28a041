"""The Python `Classifier`, the scikit-learn estimator and the server, without torch."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from dafuse import Classifier, DafuseClassifier
from helpers.light_core import LATER, NAMES


def labelled(root: Path) -> tuple[list[Path], list[str]]:
    files = sorted(root.glob("*/*.jpg"))
    return files, [file.parent.name for file in files]


def test_the_classifier_teaches_predicts_merges_and_goes_back(
    drawings: Path, tmp_path: Path
) -> None:
    one, other = (Classifier.create(tmp_path / name) for name in ("one", "other"))
    one.learn(drawings / "first")
    other.learn(*labelled(drawings / "later"))
    merged = Classifier.merge([one, other], tmp_path / "merged")
    assert merged.classes == [*sorted(NAMES), *sorted(LATER)]
    found = merged.evaluate(drawings / "test")
    assert found.accuracy >= 0.8
    assert len(found.answered) == found.images == 20
    assert merged.features(labelled(drawings / "test")[0][:2]).shape[0] == 2
    merged.forget("fish")
    assert "fish" not in merged.classes
    merged.undo()
    assert "fish" in merged.classes
    assert "torch" not in sys.modules


def test_the_estimator_learns_by_default_without_torch(drawings: Path) -> None:
    estimator = DafuseClassifier().fit(*labelled(drawings / "first"))
    estimator.partial_fit(*labelled(drawings / "later"))
    images, labels = labelled(drawings / "test")
    assert estimator.score(images, labels) >= 0.8
    assert estimator.predict_proba(images).sum(1) == pytest.approx(np.ones(20), abs=1e-5)
    assert "torch" not in sys.modules


@contextmanager
def served(model: Path, *options: str) -> Iterator[str]:
    """The address of `dafuse serve` as a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("dafuse")), "serve", str(model)]
    process = subprocess.Popen([*command, "--port", str(port), *options])
    address, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while True:
            try:
                httpx.get(address, timeout=5)
                break
            except httpx.HTTPError:
                assert process.poll() is None, "the server ended"
                assert time.monotonic() < end, "the server did not come"
                time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait()


def sent(address: str, picture: Path, **options: str) -> httpx.Response:
    with picture.open("rb") as file:
        return httpx.post(address, files={"images": file}, headers=options, timeout=60)


def test_the_server_answers_and_is_taught(drawings: Path, tmp_path: Path) -> None:
    token = "a-token-of-the-tests"
    bearer = {"Authorization": f"Bearer {token}"}
    with served(tmp_path / "model", "--allow-learn", "--token", token) as address:
        for name in NAMES:
            for number in range(3):
                picture = drawings / "first" / name / f"{number:03d}.jpg"
                staged = sent(f"{address}/classes/{name}/images", picture, **bearer)
                assert staged.status_code == 201, staged.text
        started = httpx.post(f"{address}/learn", headers=bearer, timeout=60)
        assert started.status_code == 202, started.text
        end = time.monotonic() + 60
        while not httpx.get(f"{address}/classes", timeout=30).json()["classes"]:
            assert time.monotonic() < end, "the lesson did not end"
            time.sleep(0.05)
        answer = sent(f"{address}/predict", drawings / "test" / "oak" / "002.jpg")
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["predictions"]
        assert {one["name"] for one in found["top"]} == set(NAMES)
        assert "<title>" in httpx.get(address).text
    assert Classifier.open(tmp_path / "model").classes == sorted(NAMES)


@pytest.mark.parametrize("classes", [1, 5])
def test_twenty_versions_take_little_more_room_than_the_last(tmp_path: Path, classes: int) -> None:
    """The embedded network makes records of the size that people have."""
    model, rng = Classifier.create(tmp_path / "model"), np.random.default_rng(0)
    for lesson in range(20):
        names = [f"class {classes * lesson + number}" for number in range(classes)]
        images = [rng.integers(0, 256, (16, 16, 3), dtype=np.uint8) for _ in range(3 * classes)]
        model.learn(images, np.repeat(names, 3))
    folder, version = model.folder, model.version
    last = [folder.version_file(version.number), *map(folder.object_file, version.objects)]
    everything = [file for file in folder.path.rglob("*") if file.is_file()]
    room, of_last = (sum(file.stat().st_size for file in files) for files in (everything, last))
    assert len(folder.numbers()) == 20
    assert room <= 1.5 * of_last
