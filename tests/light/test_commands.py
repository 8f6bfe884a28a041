"""Every command of the product by the real command line, where torch is not installed."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from dafuse import Classifier
from dafuse.backbones.registry import COMPACT
from dafuse.cli import how_to_install, main
from helpers.light_core import LATER, NAMES, dafuse

# opening a file by an opener of its own is told once more, without a mode
LOOKS = "sys.addaudithook(lambda e, a: e == 'open' and a[1] and opened.append(str(a[0])))"
NOT_TO_PREDICT = (
    *("lesson", "reading", "seen", "spread", "steps", "summary", "ledger"),
    *("evaluation", "export", "estimator", "server"),
)
SOURCES = ("own_data", "arrays", "tables", "tars", "remote_folders")
TORCH = "pip install 'dafuse[torch]'"


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Path:
    """A copy of the model, to change."""
    return Path(shutil.copytree(model, tmp_path / "own"))


@pytest.mark.parametrize("module", ["torch", "torchvision", "timm", "lightning_fabric"])
def test_there_is_no_torch_here(module: str) -> None:
    assert find_spec(module) is None


def test_learn_and_evaluate(model: Path, drawings: Path) -> None:
    said = dafuse("evaluate", model, drawings / "test").stdout
    (share,) = re.findall(r"([\d.]+)% of 20 images of 5 classes right", said)
    assert float(share) >= 80


def test_predict_and_its_forms(model: Path, drawings: Path) -> None:
    picture = drawings / "test" / "fish" / "000.jpg"
    assert "fish" in dafuse("predict", model, picture, "--no-unknown").stdout
    (answer,) = json.loads(dafuse("predict", model, picture, "--json", "--top", 3).stdout)
    assert answer["top"][0]["name"] == "fish"
    assert len(answer["top"]) == 3
    assert dafuse("predict", model, picture, "--csv").stdout.startswith("file,answer,rank")


def looking_on(code: str, *asked: object) -> list[str]:
    """Ask in a process that says, in its last lines, what this code prints at the end."""
    program = f"import sys; opened = []; {LOOKS}; from dafuse.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", f"{program}; {code}", *map(str, asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("exported", [False, True])
def test_predicting_imports_nothing_that_teaches_evaluates_or_downloads(
    exported: bool, model: Path, drawings: Path, tmp_path: Path
) -> None:
    asked = tmp_path / "model.onnx" if exported else model
    if exported:
        dafuse("export", model, asked)
    image = drawings / "test" / "fish" / "000.jpg"
    imported = set(looking_on("print(*sys.modules)", "predict", asked, image)[-1].split())
    assert f"dafuse.product.{'predictor' if exported else 'classifier'}" in imported
    unused = {f"dafuse.product.{name}" for name in NOT_TO_PREDICT}
    unused |= {f"dafuse.data.{name}" for name in SOURCES}
    if exported:
        unused |= {f"dafuse.heads.{name}" for name in ("closed_form", "confidence", "many")}
    assert not (unused | {"urllib.request", "onnx", "sklearn"}) & imported


def test_predicting_reads_each_file_once_and_none_that_it_does_not_use(
    model: Path, drawings: Path
) -> None:
    image = drawings / "test" / "fish" / "000.jpg"
    said = looking_on("print(*opened, sep='\\n')", "predict", model, image)
    read = Counter(Path(line).name for line in said if line.endswith((".json", ".safetensors")))
    version = Classifier.open(model).version
    expected = ["model.json", f"{version.number:04d}.json", f"{version.predict}.safetensors"]
    assert read == Counter([*expected, f"{COMPACT.partition('.')[0]}.safetensors"])


def test_info_and_ledger(model: Path) -> None:
    assert "5 classes from 30 images" in dafuse("info", model).stdout
    assert "no image" in dafuse("ledger", model).stdout


def test_forget_rename_undo_and_trim(own: Path) -> None:
    dafuse("rename", own, "fish", "carp")
    assert "carp" in dafuse("info", own).stdout
    dafuse("forget", own, "carp")
    assert "4 classes" in dafuse("info", own).stdout
    dafuse("undo", own)
    assert "5 classes" in dafuse("info", own).stdout
    dafuse("trim", own, "--keep", 1)
    assert "5 classes" in dafuse("info", own).stdout


def test_merge_models_taught_apart(drawings: Path, tmp_path: Path) -> None:
    parts = tmp_path / "one", tmp_path / "other"
    for part, lesson in zip(parts, ("first", "later"), strict=True):
        dafuse("learn", part, drawings / lesson, "--method", "simplecil")
    said = dafuse("merge", *parts, "--out", tmp_path / "both").stdout
    assert "5 classes from 30 images, of 2 models" in said


@pytest.mark.parametrize("int8", [False, True])
def test_export_answers_as_the_model(
    model: Path, drawings: Path, tmp_path: Path, int8: bool
) -> None:
    file = tmp_path / "model.onnx"
    dafuse("export", model, file, *(["--int8"] if int8 else []))
    asked = [drawings / "test" / name / "001.jpg" for name in (*NAMES, *LATER)]
    answers = [json.loads(dafuse("predict", one, *asked, "--json").stdout) for one in (file, model)]
    assert [one["top"][0]["name"] for one in answers[0]] == [
        one["top"][0]["name"] for one in answers[1]
    ]
    if not int8:
        shares = [[one["probability"] for one in found] for found in answers]
        assert shares[0] == pytest.approx(shares[1], abs=1e-3)


def test_the_page_of_an_evaluation(model: Path, drawings: Path, tmp_path: Path) -> None:
    file, page = tmp_path / "model.onnx", tmp_path / "page.html"
    dafuse("export", model, file)
    for one in (model, file):
        said = dafuse("evaluate", one, drawings / "test", "--page", page).stdout
        assert f"page: {page}" in said
        assert f"{one.name} on " in page.read_text()
        page.unlink()


def test_the_demo_ends_above_nine_tenths(tmp_path: Path) -> None:
    said = dafuse("demo", "--out", tmp_path / "demo").stdout
    for step in ("teach", "teach again", "merge both", "evaluate, with a page"):
        assert step in said
    (share,) = re.findall(r"([\d.]+)% of the images that it was not taught with", said)
    assert float(share) > 90
    assert "<svg" in (tmp_path / "demo" / "page.html").read_text()


def test_the_demo_deletes_nothing_that_it_did_not_make(tmp_path: Path) -> None:
    mine = tmp_path / "model" / "mine.txt"
    mine.parent.mkdir()
    mine.touch()
    (line,) = dafuse("demo", "--out", tmp_path, code=2).stderr.splitlines()
    assert line.endswith("was not made by the demo: choose another --out")
    assert mine.exists()


def test_what_can_be_taught_is_listed_and_what_is_missing_is_named() -> None:
    listed = dafuse("list", "methods").stdout
    assert "lift" in listed
    assert "pip install 'dafuse[torch]'" in " ".join(listed.split())
    everything = dafuse("list").stdout
    assert "recipes: pip install 'dafuse[torch]' to list them" in everything
    doctor = dafuse("doctor").stdout
    assert "torch: not installed" in doctor
    assert "numpy " in doctor


def test_many_answers_that_nobody_watches_say_how_far_they_are(
    model: Path,
    drawings: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("dafuse.progress.LineProgress.is_time", lambda progress: True)
    main(["predict", str(model), str(drawings / "test"), "--json"])
    said = capsys.readouterr()
    assert "predict: 1 of " in said.err
    assert json.loads(said.out)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("matplotlib", "pip install 'dafuse[torch]'"),
        ("scipy", "pip install 'dafuse[torch]'"),
        ("jinja2", "pip install 'dafuse[torch]'"),
        ("uvicorn", "pip install 'dafuse[serve]'"),
        ("sklearn", "pip install 'dafuse[sklearn]'"),
        ("pyarrow", "pip install 'dafuse[tables]'"),
        ("pillow_heif", "pip install pillow_heif"),
    ],
)
def test_the_right_extra_is_named(module: str, expected: str) -> None:
    assert how_to_install(module) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["learn", "{new}", "{first}", "--method", "daf"], "the method daf needs "),
        (["learn", "{new}", "{first}", "--backbone", "vit_tiny_patch16_224.augreg_in21k"], "vit_"),
        (
            ["learn", "{new}", "{first}", "--backbone", "vit_tiny_patch16_22"],
            "no backbone vit_tiny_patch16_22; did you mean deit_tiny_patch16_224.fb_in1k? Another "
            "tag of timm needs torch",
        ),
        (["learn", "{new}", "{first}", "--backbone", "x"], "no backbone x; any tag of timm needs"),
        (["learn", "{new}", "{first}", "--weights", "w.safetensors"], "(--weights) needs torch"),
        (
            ["learn", "{new}", "{first}", "--device", "cuda"],
            "the device cuda needs onnxruntime-gpu or torch",
        ),
        (["run", "--method", "lift"], "run needs "),
        (["demo-research"], "demo-research needs "),
        (["bench"], "bench needs "),
        (["experiment", "ablation"], "experiment needs "),
    ],
)
def test_what_needs_torch_says_so_in_one_line(
    command: list[str], expected: str, drawings: Path, tmp_path: Path
) -> None:
    places = {"new": tmp_path / "new", "first": drawings / "first"}
    given = [argument.format(**places) for argument in command]
    (line,) = dafuse(*given, cwd=tmp_path, code=2).stderr.splitlines()
    assert expected in line
    assert line.endswith(TORCH)
    assert not (tmp_path / "new").exists()
