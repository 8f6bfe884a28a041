"""Exported models without torch: the same answers, in a process where torch cannot be imported."""

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from dafuse.backbones.card import sealed_onnx
from dafuse.cli import main
from dafuse.data.preprocessing import CROPS, INTERPOLATIONS, Crop, Interpolation, Preprocessing
from dafuse.data.transforms import centre_crops, crop_and_resize
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from dafuse.product.predictor import ExportedModel
from helpers.photographs import photographs, write_photographs
from helpers.places import OLD_MODEL
from helpers.processes import HEAVY, clean_environment, dafuse_without

pytestmark = pytest.mark.usefixtures("traced_once")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("export") / "model.onnx"
    main(["export", str(OLD_MODEL), str(file)])
    return file


def bare(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Dafuse where only numpy, Pillow and onnxruntime can be imported."""
    command = [*dafuse_without(*HEAVY, "safetensors"), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=clean_environment(), check=False
    )


def test_predict_without_torch_answers_as_the_model(exported: Path, tmp_path: Path) -> None:
    files = write_photographs(tmp_path / "photographs")
    done = bare("predict", exported, tmp_path / "photographs", "--json", "--top", 3)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [answer["file"] for answer in answers] == sorted(map(str, files))
    expected = Classifier.open(OLD_MODEL, device="cpu").predict(sorted(files), top=3)
    assert {found.unknown for found in expected} == {True, False}
    for answer, found in zip(answers, expected, strict=True):
        assert (answer["name"], answer["unknown"]) == (found.name, found.unknown)
        assert answer["familiarity"] == pytest.approx(found.familiarity, abs=1e-3)
        shares = {one["name"]: one["probability"] for one in answer["top"]}
        assert shares == pytest.approx(dict(found.top), abs=1e-4)


@pytest.fixture
def to_test(tmp_path: Path) -> Path:
    """Class folders: two classes that the model has, one that it has not, a file that is none."""
    model = Classifier.open(OLD_MODEL, device="cpu")
    known, other, _ = model.classes
    root = tmp_path / "to test"
    for number, file in enumerate(write_photographs(tmp_path / "photographs")):
        folder = root / (known, other, "untaught")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        file.rename(folder / file.name)
    (root / known / "broken.png").write_bytes(b"")
    return root


def test_evaluate_without_torch_tells_what_the_model_tells(
    exported: Path, to_test: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = bare("evaluate", exported, to_test)
    assert done.returncode == 0, done.stderr
    main(["evaluate", str(OLD_MODEL), str(to_test), "--device", "cpu"])
    expected = capfd.readouterr()
    assert done.stdout == expected.out
    for part in ("right", "calibration error", "most confused:", "taken for", "never taught"):
        assert part in done.stdout
    (skipped,) = done.stderr.splitlines()
    assert skipped.startswith("skipped ")
    assert "broken.png" in skipped
    main(["evaluate", str(exported), str(to_test)])  # where there are bars, too
    assert capfd.readouterr().out == expected.out
    found = ExportedModel(exported).evaluate(to_test)
    assert [one.name for one in found.untaught] == ["untaught"]


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_models_folder_still_needs_torch(command: str, to_test: Path) -> None:
    done = bare(command, OLD_MODEL, to_test)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{command} needs" in line


@pytest.mark.parametrize(
    ("model", "folder", "option", "expected"),
    [
        ("nowhere.onnx", "to test", [], "there is no file nowhere.onnx"),
        ("to test/notes.onnx", "to test", [], "does not end in dafuse's checksum"),
        ("model.onnx", "nowhere", [], "no folder nowhere"),
        ("model.onnx", "photographs", [], "photographs"),
        ("model.onnx", "to test", ["--device", "cuda"], "runs on the cpu"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(
    model: str, folder: str, option: list[str], expected: str,
    exported: Path, to_test: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").symlink_to(exported)
    (to_test / "notes.onnx").write_text("no model")
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", model, folder, *option])
    assert stopped.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert expected in line


def test_predict_has_the_same_options(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(file) for file in write_photographs(tmp_path / "photographs")]
    main(["predict", str(exported), *files, "--no-unknown"])
    assert "unknown" not in capsys.readouterr().out
    main(["predict", str(exported), *files, "--threshold", "1e9"])
    assert capsys.readouterr().out.count(": unknown (closest: ") == len(files)
    for model in (exported, OLD_MODEL):
        main(["predict", str(model), *files, "--csv", "--top", "2"])
    text = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(text)))
    ours, theirs = rows[: 2 * len(files)], rows[2 * len(files) + 1 :]
    for one, other in zip(ours, theirs, strict=True):
        assert float(one.pop("probability")) == pytest.approx(
            float(other.pop("probability")), abs=1e-4
        )
        assert one == other
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(SystemExit) as stopped:
        main(["predict", str(exported), str(tmp_path / "text.jpg"), files[0]])
    assert stopped.value.code == 1
    said = capsys.readouterr()
    assert "text.jpg cannot be read: not an image" in said.err
    assert len(said.out.splitlines()) == 1


def test_from_python(exported: Path) -> None:
    model, classifier = ExportedModel(exported), Classifier.open(OLD_MODEL, device="cpu")
    assert model.classes == classifier.classes
    images = photographs() * 4  # more than are predicted at once
    assert np.abs(model.probabilities(images) - classifier.probabilities(images)).max() < 1e-4
    (one,) = model.predict(images[0], top=2, threshold=-math.inf)
    assert (one.name, len(one.top), one.unknown) == (one.top[0][0], 2, False)
    assert model.predict([]) == []
    assert model.probabilities([]).shape == (0, 3)
    with pytest.raises(DafuseError, match="image 1 cannot be read: pixels must be uint8"):
        model.predict([images[0], images[0].astype(float)])


@pytest.mark.parametrize(
    "shape", [(24, 24), (64, 64), (17, 301), (333, 200), (1, 5), (73, 73), (700, 900)]
)
@pytest.mark.parametrize(("size", "resize"), [(64, 73), (224, 256), (32, 32)])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("crop", CROPS)
def test_the_square_is_the_test_transforms(
    shape: tuple[int, int], size: int, resize: int, interpolation: Interpolation, crop: Crop
) -> None:
    """Noise is cut, where resampling overshoots most; differences are in grey levels, of 255."""
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    looks = Preprocessing(size, (0.0,) * 3, (1.0,) * 3, resize, interpolation, crop)
    sizes = torch.tensor([shape])
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    boxes, flips = centre_crops(sizes, looks)
    cut = crop_and_resize(images, sizes, boxes, flips, size, interpolation, confined=False)
    expected = cut[0]
    assert np.abs(looks.centre_square(pixels) - expected.numpy()).max() < 0.03


def broken(path: Path, kind: str, exported: Path) -> None:
    """A file that is not what it should be."""
    data = exported.read_bytes()
    if kind == "text":
        path.write_text("no model")
    elif kind == "cut off":
        path.write_bytes(data[: len(data) // 2])
    elif kind != "missing":
        proto = onnx.load(exported)
        changes = {"newer": {"dafuse.format": "99"}, "damaged": {"dafuse.classes": "[1"}}
        kept = {} if kind == "another's" else {p.key: p.value for p in proto.metadata_props}
        onnx.helper.set_model_props(proto, kept | changes.get(kind, {}))
        path.write_bytes(sealed_onnx(proto.SerializeToString()))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("missing", "there is no file"),
        ("text", "does not end in dafuse's checksum"),
        ("cut off", "is cut off or damaged"),
        ("another's", "was not made by dafuse export"),
        ("newer", "install a newer dafuse"),
        ("damaged", "is damaged"),
    ],
)
def test_other_files_are_refused_by_name(
    kind: str, expected: str, exported: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    broken(path, kind, exported)
    with pytest.raises(SystemExit) as stopped:
        main(["predict", str(path), str(OLD_MODEL.parent / "model-v1-image.png")])
    assert stopped.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert str(path) in line
    assert expected in line


@pytest.mark.parametrize("int8", [False, True])
def test_a_changed_bit_is_refused_wherever_it_is(
    int8: bool, exported: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    if int8:
        Classifier.open(OLD_MODEL, device="cpu").export(path, int8)
    else:
        shutil.copy(exported, path)
    ExportedModel(path)
    data = path.read_bytes()
    for place in [*range(0, len(data), len(data) // 20), len(data) - 100, len(data) - 1]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(DafuseError, match=r"model\.onnx (is damaged|does not end in dafuse's)"):
            ExportedModel(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("classes", ["a", "b"]),
        ("classes", ["a", "b", "c", "d"]),
        ("classes", ["a", "b", "b"]),
        ("classes", ["a", "b", "\x1b[2J"]),
        ("classes", ["a", "b", 3]),
        ("classes", "abc"),
        ("threshold", "0"),
        ("threshold", math.nan),
        ("model_version", -1),
        ("made_by", "\x1b]0;dafuse\x07"),
        ("preprocessing", {"size": 65, "mean": [0] * 3, "std": [1] * 3, "resize": 73}),
        ("preprocessing", {"size": 0, "mean": [0] * 3, "std": [1] * 3, "resize": 73}),
    ],
)
def test_a_sealed_file_that_says_nonsense_is_refused(
    name: str, value: object, exported: Path, tmp_path: Path
) -> None:
    proto, path = onnx.load(exported), tmp_path / "forged.onnx"
    properties = {prop.key: prop.value for prop in proto.metadata_props}
    onnx.helper.set_model_props(proto, properties | {f"dafuse.{name}": json.dumps(value)})
    path.write_bytes(sealed_onnx(proto.SerializeToString()))
    with pytest.raises(DafuseError, match=r"is damaged|onnxruntime cannot run") as refused:
        ExportedModel(path).predict(photographs()[0])
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("option", [["--device", "cuda"], ["--weights", "some.safetensors"]])
def test_options_that_a_file_cannot_have(
    option: list[str], exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["predict", str(exported), str(OLD_MODEL.parent / "model-v1-image.png"), *option])
    assert "has its weights inside and runs on the cpu" in capsys.readouterr().err


def test_missing_onnxruntime_is_said(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DafuseError, match="pip install onnxruntime"):
        ExportedModel(exported)
