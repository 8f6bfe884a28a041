"""The product's commands as people type them, with good and with bad input."""

import csv
import io
import json
from pathlib import Path

import pytest

from dafuse.cli import main
from dafuse.product.folder import ModelFolder
from helpers.product_models import files, write_folders

pytestmark = pytest.mark.usefixtures("small_network")
QUICK = ["--device", "cpu"]


class Terminal:
    """Runs commands in a folder of their own and remembers what they said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        code = 0
        try:
            main(list(arguments))
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        self.out, self.err = self.capsys.readouterr()
        return code


@pytest.fixture
def dafuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_folders(Path("photos"), {0: 6, 1: 6})
    write_folders(Path("later"), {1: 5, 2: 5}, seed=1)
    return Terminal(capsys)


@pytest.fixture
def taught(dafuse: Terminal) -> Terminal:
    assert dafuse("learn", "model", "photos", *QUICK) == 0
    return dafuse


def test_a_model_is_made_and_taught_more(taught: Terminal) -> None:
    assert "learned 2 new classes from 12 images" in taught.out
    assert taught("learn", "model", "later", *QUICK) == 0
    assert "learned 1 new class" in taught.out
    assert "class 1: 5 more images, 11 in all" in taught.out
    assert ModelFolder("model").read(lambda version: version.names) == [
        "class 0",
        "class 1",
        "class 2",
    ]
    assert taught("info", "model") == 0
    assert "3 classes from 22 images, version 2" in taught.out
    assert taught("ledger", "model") == 0
    assert "no image in them" in taught.out
    assert taught("evaluate", "model", "later", "--device", "cpu") == 0
    assert "of 10 images of 2 classes right" in taught.out


def test_mirroring_is_as_in_the_last_lesson_unless_told(dafuse: Terminal) -> None:
    training = [*QUICK, "--method", "daf", "--epochs", "1"]
    lessons = (([], True), (["--no-flip"], False), ([], False), (["--flip"], True))
    for number, (option, mirrored) in enumerate(lessons):
        write_folders(Path("more"), {0: 2, 1: 2}, seed=number)
        assert dafuse("learn", "model", "more", *training, *option) == 0
        assert ModelFolder("model").read(lambda version: version.step["flip"]) is mirrored


def test_the_first_line_of_a_new_model_names_its_network(dafuse: Terminal) -> None:
    assert dafuse("learn", "model", "photos", *QUICK) == 0
    assert dafuse.err.splitlines() == [
        "model is a new model: method lift, network small, which looks at images of 32 x 32 pixels"
    ]
    assert dafuse("learn", "model", "later", *QUICK) == 0
    assert not dafuse.err


def test_what_cannot_become_a_model_is_not_called_a_new_one(dafuse: Terminal) -> None:
    Path("file").write_text("")
    assert dafuse("learn", "file/model", "photos", *QUICK) == 2
    assert dafuse.err == "dafuse: file/model cannot be a model: Not a directory\n"


def test_a_folder_that_grows_is_taught_again_and_again(taught: Terminal) -> None:
    before = files(Path("model"))
    assert taught("learn", "model", "photos", *QUICK) == 0
    assert (
        taught.out == "nothing new: skipped 12 images taught before; the model stays at version 1\n"
    )
    assert files(Path("model")) == before
    for number, file in enumerate(sorted(Path("later/class 2").iterdir())[:3]):
        file.rename(Path("photos/class 0") / f"more-{number}.png")
    assert taught("learn", "model", "photos", *QUICK) == 0
    assert taught.out.splitlines()[:3] == [
        taught.out.splitlines()[0],
        "  skipped 12 images taught before",
        "  class 0: 3 more images, 9 in all",
    ]
    assert taught("learn", "model", "photos", "--no-recognise", *QUICK) == 0
    assert "class 0: 9 more images, 18 in all" in taught.out


def test_files_that_are_skipped_are_named(taught: Terminal) -> None:
    Path("later/class 1/a.heic").write_bytes(b"x")
    Path("later/class 2/notes.txt").write_bytes(b"x")
    Path("later/class 3").mkdir()
    expected = [
        "skipped later/class 1/a.heic: HEIC needs a plug-in: pip install pillow-heif",
        "skipped later/class 2/notes.txt: not an image",
        "skipped class 3: no images in this class folder",
    ]
    assert taught("learn", "model", "later", *QUICK) == 0
    assert taught.err.splitlines() == expected
    assert taught("evaluate", "model", "later", "--device", "cpu") == 0
    assert taught.err.splitlines() == expected


def test_forget_rename_and_undo_say_what_they_did(taught: Terminal) -> None:
    assert taught("rename", "model", "class 0", "zero") == 0
    assert "class 0 is now called zero" in taught.out
    assert taught("forget", "model", "zero") == 0
    assert "dafuse undo brings back" in taught.out
    assert taught("undo", "model") == 0
    assert "forgot zero" in taught.out
    assert "version 2 again, with 2 classes" in taught.out
    assert taught("forget", "model", "zero", "--for-good") == 0
    assert "for good: deleted their records and 2 older versions of the model" in taught.out
    assert taught("undo", "model") == 2
    assert "nothing to undo" in taught.err


def test_predict_answers_files_folders_and_patterns(taught: Terminal) -> None:
    assert taught("predict", "model", "photos", "photos/class 0/00*.png", "--top", "2") == 0
    lines = taught.out.splitlines()
    assert len(lines) == 12 + 6
    assert all("class 0" in line or "class 1" in line for line in lines)
    assert taught("predict", "model", "photos", "--no-unknown") == 0
    assert "unknown" not in taught.out
    assert taught("predict", "model", "photos", "--threshold", "1e9") == 0
    assert taught.out.count(": unknown (closest: class") == 12


def test_predict_prints_json_and_csv(taught: Terminal) -> None:
    files_ = ["photos/class 0/000.png", "photos/class 1/006.png"]
    assert taught("predict", "model", *files_, "--json", "--top", "2") == 0
    answers = json.loads(taught.out)
    assert [answer["file"] for answer in answers] == files_
    assert [len(answer["top"]) for answer in answers] == [2, 2]
    assert answers[0]["top"][0]["probability"] == answers[0]["probability"]
    assert taught("predict", "model", *files_, "--csv", "--top", "2") == 0
    rows = list(csv.DictReader(io.StringIO(taught.out)))
    assert [(row["file"], row["rank"]) for row in rows] == [
        (file, rank) for file in files_ for rank in ("1", "2")
    ]
    assert float(rows[0]["probability"]) == pytest.approx(answers[0]["probability"], abs=1e-6)
    assert [row["answer"] for row in rows[::2]] == [answer["name"] for answer in answers]


def test_the_csv_says_the_answer_of_every_file(taught: Terminal) -> None:
    Path("text.jpg").write_text("no image")
    given = ["text.jpg", "photos/class 0/000.png"]
    assert taught("predict", "model", *given, "--csv", "--threshold", "1e9", "--top", "2") == 1
    header, unreadable, *rows = csv.reader(io.StringIO(taught.out))
    assert header == ["file", "answer", "rank", "class", "probability", "unknown"]
    assert unreadable == ["text.jpg", "unreadable", "", "", "", ""]
    assert [row[:3] for row in rows] == [[given[1], "unknown", "1"], [given[1], "unknown", "2"]]
    assert {row[3] for row in rows} == {"class 0", "class 1"}
    assert taught("predict", "model", given[1], "--csv", "--no-unknown") == 0
    (row,) = csv.DictReader(io.StringIO(taught.out))
    assert (row["answer"], row["unknown"]) == (row["class"], "false")


def test_predict_names_folders_and_patterns_without_images(taught: Terminal) -> None:
    Path("empty").mkdir()
    given = ["photos/class 0/000.png", "zzz*.jpg", "empty"]
    assert taught("predict", "model", *given) == 1
    assert len(taught.out.splitlines()) == 1
    assert taught.err.splitlines() == [
        "dafuse: there is no image in zzz*.jpg",
        "dafuse: there is no image in empty",
    ]


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_predict_names_the_files_that_are_no_images(taught: Terminal, form: list[str]) -> None:
    assert taught("predict", "model", "photos", *form) == 0
    before = taught.out
    for name in ("a.heic", "y.cr2", "notes.txt"):
        Path("photos", name).write_bytes(b"x")
    assert taught("predict", "model", "photos", *form) == 0
    assert taught.out == before
    assert taught.err.splitlines() == [
        "dafuse: skipped photos/a.heic: HEIC needs a plug-in: pip install pillow-heif",
        "dafuse: skipped photos/notes.txt: not an image",
        "dafuse: skipped photos/y.cr2: .cr2 files are not read; save them as JPEG or PNG",
    ]
    Path("raw").mkdir()
    Path("photos/y.cr2").rename("raw/y.cr2")
    assert taught("predict", "model", "raw", *form) == 2
    assert "there is no image in raw; skipped raw/y.cr2: .cr2 files are not read" in taught.err


def test_predict_names_what_cannot_be_read_and_answers_the_rest(taught: Terminal) -> None:
    Path("text.jpg").write_text("no image")
    given = ["text.jpg", "photos/class 0/000.png", "nowhere.png"]
    assert taught("predict", "model", *given) == 1
    assert len(taught.out.splitlines()) == 1
    assert "text.jpg cannot be read: not an image" in taught.err
    assert "nowhere.png cannot be read: there is no such file" in taught.err
    assert taught("predict", "model", *given, "--json") == 1
    assert [sorted(answer) == ["error", "file"] for answer in json.loads(taught.out)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("learn model nowhere", "no folder nowhere"),
        ("learn model empty", "no class folder in empty, it is empty"),
        ("learn model hollow", "no image in the class folders of hollow"),
        (
            "learn model broken",
            "none of the images can be read: broken/cat/1.jpg: not an image that Pillow knows",
        ),
        (
            "learn model half",
            "no test/, val/ or valid/ beside it: add one, or give half/train itself",
        ),
        ("learn model pair --lr 1e30", "lr: only for methods that train, and lift does not"),
        ("evaluate model half", "or give half/train itself"),
        ("learn photos later", "photos is no model and not empty"),
        ("learn model photos --backbone another.tag", "made with the backbone"),
        ("learn model photos --seed 3", "made with the seed 1993"),
        ("learn other photos --seed -1", "seed must be at least 0 and at most 4294967295, not -1"),
        ("learn other photos --set rank=true", "rank must be a whole number, not True"),
        (f"learn other photos --set rank={'[' * 100_000}", "its value is nested too deeply"),
        ("learn other photos --method lfit", "; did you mean lift?"),
        ("learn model photos --epocs 3", "there is no option --epocs; see dafuse learn --help"),
        ("learn model photos --epocs 3", "did you mean --epochs?"),
        ("lern model photos", "no command is called 'lern'; see dafuse --help; did you mean lea"),
        ("forget model clas1", "did you mean class 1?"),
        ("learn model", "SOURCE is missing; see dafuse learn --help"),
        ("predict nowhere photos", "no model nowhere"),
        ("predict photos photos", "photos is not a dafuse model"),
        ("predict model empty", "no image in empty"),
        ("predict model *.nothing", "no image in *.nothing"),
        ("predict model photos --top 0", "--top must be at least 1"),
        ("evaluate model nowhere", "no folder nowhere"),
        ("info nowhere", "no model nowhere"),
        ("ledger photos", "photos is not a dafuse model"),
        ("forget model dog", "no class is called 'dog'; there are class 0, class 1"),
        ("rename model dog cat", "no class is called 'dog'"),
        ("undo model", "nothing to undo"),
        ("trim model", "--keep is missing; see dafuse trim --help"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    taught: Terminal, arguments: str, expected: str
) -> None:
    Path("empty").mkdir()
    Path("hollow/cat").mkdir(parents=True)
    Path("broken/cat").mkdir(parents=True)
    Path("broken/cat/1.jpg").write_text("no image")
    Path("half/train/cat").mkdir(parents=True)
    write_folders(Path("pair"), {3: 2, 4: 2})
    before = files(Path("model"))
    assert taught(*arguments.split()) == 2
    told = ("skipped", "other is a new model")
    said = [line for line in taught.err.splitlines() if not line.startswith(told)]
    assert len(said) == 1
    assert said[0].startswith("dafuse: ")
    assert expected in said[0]
    assert not taught.out
    assert files(Path("model")) == before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--epochs 3", "epochs: only for methods that train, and lift does not"),
        ("--method layup --epochs 3", "epochs: only for methods that train, and layup does not"),
        ("--method daf --epochs 0", "epochs must be at least 1, not 0"),
        ("--method daf --holdout 2", "holdout must be at least 0 and at most 0.9999, not 2.0"),
        ("--method daf --lr -1", "lr must be at least 0, not -1.0"),
    ],
)
def test_a_wrong_option_of_a_lesson_is_the_only_line(
    dafuse: Terminal, options: str, expected: str
) -> None:
    """A model that does not come to be is not introduced."""
    assert dafuse("learn", "other", "photos", *options.split()) == 2
    assert dafuse.err == f"dafuse: {expected}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["learn", "", "photos"], "learn"),
        (["learn", "model", ""], "model"),
        (["learn", "model", "later", "--weights", ""], "--weights"),
        (["predict", "model", ""], "model"),
        (["evaluate", "model", ""], "model"),
        (["evaluate", "model", "photos", "--page="], "--page="),
        (["demo", "--out", ""], "--out"),
        (["export", "model", ""], "model"),
    ],
)
def test_an_empty_argument_is_not_the_current_folder(
    taught: Terminal, arguments: list[str], expected: str
) -> None:
    before = files(Path())
    assert taught(*arguments) == 2
    assert taught.err == f"dafuse: what follows {expected} is empty: give a value there\n"
    assert files(Path()) == before


def test_missing_or_other_weights_are_said(
    dafuse: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dafuse.taught.open_extractor import open_extractor

    assert dafuse("learn", "model", "photos", *QUICK) == 0
    monkeypatch.setattr("dafuse.product.classifier.open_extractor", open_extractor)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    head = ModelFolder("model")
    version = head.read(lambda version: version)
    from dataclasses import replace

    tag = "deit_tiny_patch16_224.fb_in1k"
    head.publish(replace(version, backbone=replace(version.backbone, tag=tag)))
    assert dafuse("predict", "model", "photos") == 2
    assert f"the weights {tag} are not here" in dafuse.err
    Path(f"{tag}.safetensors").write_bytes(b"something else")
    assert dafuse("predict", "model", "photos", "--weights", f"{tag}.safetensors") == 2
    assert "has SHA-256" in dafuse.err
    assert dafuse("learn", "other", "photos", "--backbone", "vit_huge") == 2
    assert "no backbone is called vit_huge" in dafuse.err
    assert not Path("other").exists()


def test_ctrl_c_changes_nothing(taught: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    before = files(Path("model"))
    monkeypatch.setattr("dafuse.product.lesson.teach", interrupt)
    assert taught("learn", "model", "later", *QUICK) == 130
    assert taught.err.strip().endswith("dafuse: stopped; nothing changed")
    assert files(Path("model")) == before


@pytest.mark.parametrize(
    ("arguments", "now"),
    [
        (["learn", "model", "later", *QUICK], 3),
        (["rename", "model", "class 0", "cat"], 3),
        (["forget", "model", "class 0"], 3),
        (["undo", "model"], 1),
    ],
)
def test_ctrl_c_just_after_a_step_was_finished_says_so(
    taught: Terminal, monkeypatch: pytest.MonkeyPatch, arguments: list[str], now: int
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    assert taught("rename", "model", "class 1", "dog") == 0
    # point_to calls it once model.json is replaced; changing calls it before anything is done
    at_end = iter([lambda folder: None, interrupt])
    monkeypatch.setattr(ModelFolder, "remove_unreachable", lambda folder: next(at_end)(folder))
    assert taught(*arguments) == 130
    (line,) = [line for line in taught.err.splitlines() if line.startswith("dafuse: ")]
    assert line == (
        f"dafuse: stopped; model is at version {now} now, and was at version 2 before: "
        "see dafuse info model"
    )
    assert ModelFolder("model").current().number == now


def test_ctrl_c_claims_nothing_where_nobody_looked(
    taught: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dafuse.product.classifier.Classifier.export", interrupt)
    assert taught("export", "model", "model.onnx") == 130
    assert taught.err.strip() == "dafuse: stopped"


def test_a_name_that_begins_with_a_dash_comes_after_two(taught: Terminal) -> None:
    for wrong in (["rename", "model", "class 0", "-y"], ["forget", "model", "class 0", "-y"]):
        assert taught(*wrong) == 2
        assert "a name that begins with a dash comes after two of them: -- -y" in taught.err
    assert taught("rename", "model", "class 0", "--", "-y") == 0
    assert taught("forget", "model", "--", "-y") == 0
    assert taught("predict", "model", "--tpo", "3") == 2
    assert "dash" not in taught.err


def test_export_finds_out_first_that_it_cannot_write(
    taught: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("folder.onnx").mkdir()
    monkeypatch.setattr("dafuse.product.folder.ModelFolder.read", lambda *args: 1 / 0)
    for file in ("nowhere/model.onnx", "folder.onnx", "photos"):
        assert taught("export", "model", file) == 2
        assert file in taught.err

    def refuse(*args: object, **options: object) -> object:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("builtins.open", refuse)
    assert taught("export", "model", "model.onnx") == 2
    assert "cannot write model.onnx: Read-only file system" in taught.err
