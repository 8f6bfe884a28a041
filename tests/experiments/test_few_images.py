"""Few images: cells that the data allow, draws that repeat, and a measurement that goes on."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dafuse.cli import start
from dafuse.engine.evaluate import evaluate
from dafuse.errors import DafuseError
from dafuse.experiments import few_images
from dafuse.experiments.common_heads import COMMON
from dafuse.experiments.few_images import Features, FewImages, cell, cells, draw
from dafuse.methods.lift import LIFT
from dafuse.methods.lift_parts import lift_of
from dafuse.report.measured_few_images import (
    FILE,
    MeasuredCell,
    MeasuredCells,
    advantage,
    figure,
    means,
    table,
)
from helpers.processes import clean_environment
from helpers.run_folders import rewrite
from helpers.small_datasets import small_dataset
from helpers.small_networks import small_vit
from helpers.small_runs import small_stream, small_trainer

NAMES = ["nearest mean", *COMMON, "lift", "lift, head auto"]


def blobs(classes: int, images: int, apart: float, seed: int = 0) -> Features:
    """Images around class means: features of three parts of 24 numbers, as if of three blocks."""
    centres = np.random.default_rng(5).normal(size=(classes, 72))
    labels = np.repeat(np.arange(classes), images)
    noise = np.random.default_rng(seed).normal(size=(len(labels), 72))
    feats = torch.from_numpy((apart * centres[labels] + noise).astype(np.float32))
    return Features(feats, labels)


def some_lift() -> Any:
    return lift_of(small_vit(), "top", 0, 1, torch.zeros(0))  # 96 numbers


@pytest.mark.parametrize("images", [1, 2, 6])
def test_every_classifier_tells_classes_apart_that_are_far_apart(images: int) -> None:
    train, test = blobs(4, images, 9.0), blobs(4, 5, 9.0, seed=1)
    wider = [Features(torch.nn.functional.pad(f.feats_NF, (0, 24)), f.labels_N) for f in
             (train, test)]  # fmt: skip
    found = cell(*wider, slice(0, 24), some_lift())
    assert list(found) == NAMES
    for name, share in found.items():
        if name == "LDA" and images == 1:
            assert share is None  # nothing varies within a class
        else:
            assert share == 1.0, name


def test_lift_is_the_method_itself() -> None:
    """The same accuracy as one task learned by `lift` and evaluated by the engine."""
    dataset = small_dataset([4, 4, 4, 4], test_count=6)
    trainer, stream = small_trainer(dataset), small_stream(dataset, [4])
    for head in ("ridge", "auto"):
        method = LIFT(trainer=trainer, head=head)
        method.learn(stream[0])
        expected = evaluate(method, trainer, [stream[0].test], 4).correct[0] / 24
        parts = (
            Features(trainer.features(part, None, depths="moments")[0], part.labels)
            for part in (stream[0].train, stream[0].test)
        )
        found = cell(*parts, slice(0, 24), method.lift)
        assert found["lift" if head == "ridge" else "lift, head auto"] == expected


def test_cells_go_as_far_as_the_data() -> None:
    labels = np.repeat([0, 1, 2], [5, 5, 2])
    assert cells(labels, (2, 3, 4), (1, 5), (7, 8)) == [
        *((2, 1, 7), (2, 1, 8)),
        (2, 5, 7),  # all that there is: every draw would be the same
        *((3, 1, 7), (3, 1, 8)),
    ]


def test_draws_repeat_and_lie_within_larger_ones() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 8))
    classes, rows = draw(labels, (4, 3, 7))
    assert len(set(classes)) == 4
    assert sorted(labels[rows]) == sorted(np.repeat(classes, 3))
    for again, equal in ((draw(labels, (4, 3, 7)), True), (draw(labels, (4, 3, 8)), False)):
        assert np.array_equal(rows, again[1]) == equal
    more_classes, more_rows = draw(labels, (6, 5, 7))
    assert set(classes) < set(more_classes)
    assert set(rows) < set(more_rows)


def test_the_table_has_the_advantage_its_mean_and_its_min(tmp_path: Path) -> None:
    def one(images: int, seed: int, **accuracy: float | None) -> MeasuredCell:
        return MeasuredCell(5, images, seed, accuracy=accuracy)

    of_two = one(2, 1, a=0.5, b=0.7, lift=0.7), one(2, 2, a=0.7, b=0.6, lift=0.7)
    found = MeasuredCells({}, {}, [], [*of_two, one(1, 1, a=0.4, b=None, lift=0.3)])
    assert advantage(means(found)[5, 2]) == pytest.approx(5.0)  # over b's mean, 65 %
    head, rows = table(found)
    assert head[1:] == ["Draws", "a", "b", "lift", "lift less the best of the others"]
    assert rows[0] == ["5 classes, 1 image", "1", "40.00", "–", "30.00", "-10.00"]
    assert rows[1] == ["5 classes, 2 images", "2", "60.00", "65.00", "70.00", "+5.00"]
    assert [(row[0], row[-1]) for row in rows[2:]] == [
        ("mean of all cells", "-2.50"),
        ("min of all cells", "-10.00"),
    ]
    figure(found).write_png(tmp_path / "few.png")
    assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    dataset = small_dataset([6] * 6)
    splits = {"train": dataset.train, "test": dataset.test}
    contents: dict[str, Any] = {f"{k}_images": part.items for k, part in splits.items()}
    contents |= {f"{k}_labels": part.labels for k, part in splits.items()}
    np.savez("small.npz", **contents)
    return ["few-images", "--data", "small.npz", "--device", "cpu", "--seeds", "1", "2"]


def test_a_killed_measurement_goes_on(
    world: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    measured = few_images.cell

    def at_most(count: int) -> Any:
        def counted(*arguments: Any) -> Any:
            if len(asked) == count:
                raise KeyboardInterrupt
            asked.append(1)
            return measured(*arguments)

        return counted

    start("experiment", [*world, "--dry-run"])
    told = capsys.readouterr().out
    assert "to do" in told
    assert "makes runs/few-images-arrays.md and .png" in told
    monkeypatch.setattr(few_images, "cell", at_most(3))
    with pytest.raises(KeyboardInterrupt):
        start("experiment", world)
    (file,) = Path("runs").glob(f"few-images-arrays-*/{FILE}")
    first = json.loads(file.read_text())["cells"]
    assert len(first) == 3
    start("experiment", [*world, "--report-only"])
    assert "Missing: 3 of 6 cells" in Path("runs/few-images-arrays.md").read_text()
    monkeypatch.setattr(few_images, "cell", at_most(99))
    start("experiment", world)
    found = json.loads(file.read_text())["cells"]
    assert len(asked) == len(found) == 6  # 5 classes x 1, 2, 5 images x 2 seeds
    assert found[:3] == first
    assert all(set(one["accuracy"]) == set(NAMES) for one in found)
    assert "Missing" not in Path("runs/few-images-arrays.md").read_text()
    assert Path("runs/few-images-arrays.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    start("experiment", world)  # nothing is left
    assert len(asked) == 6
    assert "lift less the best of the others" in capsys.readouterr().out


def test_what_cannot_be_asked_for_is_told_in_one_line(
    world: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DafuseError, match=r"few-images has no runs: leave --method\.epochs out"):
        start("experiment", [*world, "--method.epochs", "3"])
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DafuseError, match=r"scikit-learn is not installed: pip install"):
        start("experiment", world)


def test_other_images_are_not_mixed_in(world: list[str]) -> None:
    start("experiment", world)
    (file,) = Path("runs").glob(f"few-images-arrays-*/{FILE}")

    def of_others(found: dict[str, Any]) -> None:
        found["provenance"]["data_fingerprint"] = "of others"
        found["cells"].pop()

    rewrite(file.parent, FILE, of_others)
    with pytest.raises(DafuseError, match="was measured with other data: delete it"):
        start("experiment", world)
    rewrite(file.parent, FILE, lambda results: results["cells"][0].update(accuracy={"lift": "all"}))
    with pytest.raises(DafuseError, match=r"accuracy\.lift is not a number; delete it"):
        start("experiment", world)
    file.write_text('{"brok')
    with pytest.raises(DafuseError, match="delete it to measure again"):
        start("experiment", world)


def test_imports_without_the_command_line() -> None:
    code = "import sys; sys.modules['cyclopts'] = None; import dafuse.experiments.few_images"
    subprocess.run([sys.executable, "-c", code], env=clean_environment(), check=True)


def test_a_script_needs_no_command_line(world: list[str]) -> None:
    from dafuse.engine.config import RunConfig

    data = {"name": "arrays", "file": "small.npz"}
    step = FewImages.asked(RunConfig(data=data, device="cpu"), (1,), "out")
    step.images = (2,)
    step.make()
    assert step.finished()
    (one,) = json.loads((step.folder / FILE).read_text())["cells"]
    assert not math.isnan(one["accuracy"]["lift"])
