"""Options: what was typed in earlier versions is still read, and a mistake is one line."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from cyclopts import Parameter

from dafuse.cli import COMMANDS, main, start
from dafuse.commands import open_model, predict
from dafuse.commands.experiment import method_options, parsed
from dafuse.commands.options import call
from dafuse.commands.run import parse
from dafuse.data.splits import split_per_class
from dafuse.engine.config import RunConfig
from dafuse.engine.run import prepare
from dafuse.errors import DafuseError
from dafuse.experiments.declared import EXPERIMENTS


def learned(
    model: str,
    /,
    *images: Annotated[str, Parameter(required=True)],
    epochs: int = 20,
    lr: float | None = None,
    weights_sha256: str | None = None,
    recognise: bool = True,
    flip: bool | None = None,
    device: Literal["auto", "cpu"] = "auto",
    settings: Annotated[Sequence[str], Parameter(name="--set")] = (),
) -> dict[str, Any]:
    """Return what was typed.

    Args:
        epochs: passes over the images
        flip: also train on mirrored images
    """
    return dict(locals())


def given(*words: str) -> dict[str, Any]:
    """Return what is not the default."""
    usual = call(learned, "dafuse x", ["m", "i"])
    found = call(learned, "dafuse x", words)
    return {name: value for name, value in found.items() if value != usual[name]}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("m a b --epochs 3 c", {"images": ("a", "b", "c"), "epochs": 3}),
        ("m i --epochs=3 --epochs 4", {"epochs": 4}),
        ("m i --weights_sha256 00", {"weights_sha256": "00"}),
        ("m i --weights-sha256 null", {"weights_sha256": "null"}),
        ("m i --weights-sha256 {}", {"weights_sha256": "{}"}),
        ("m i --lr 1e-3", {"lr": 1e-3}),
        ("m i --no-recognise --no-flip", {"recognise": False, "flip": False}),
        ("m i --flip --set rank=8 --set a=b", {"flip": True, "settings": ["rank=8", "a=b"]}),
        ("m i --set rank=-8", {"settings": ["rank=-8"]}),
        ("m -- -a --epochs", {"images": ("-a", "--epochs")}),
        ("null yes 1 [a] {}", {"model": "null", "images": ("yes", "1", "[a]", "{}")}),
    ],
)
def test_what_is_typed_is_read(words: str, expected: dict[str, Any]) -> None:
    assert {"model": "m", "images": ("i",), **given(*words.split())} == {
        "model": "m",
        "images": ("i",),
        **expected,
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "MODEL is missing; see dafuse x --help"),
        ("m", "IMAGES is missing; see dafuse x --help"),
        ("m i --epocs 3", "no option --epocs; see dafuse x --help; did you mean --epochs?"),
        (
            "m i --epocs=3",
            "there is no option --epocs; see dafuse x --help; did you mean --epochs?",
        ),
        ("m i --zzzz", "there is no option --zzzz; see dafuse x --help"),
        ("m i --epochs", "--epochs needs a value; see dafuse x --help"),
        ("m i --epochs many", "--epochs must be a whole number, not many; see dafuse x --help"),
        ("m i --epochs 2.5", "--epochs must be a whole number, not 2.5; see dafuse x --help"),
        ("m i --lr much", "--lr must be a number, not much; see dafuse x --help"),
        ("m i --flip=maybe", "--flip must be true or false, not maybe; see dafuse x --help"),
        ("m i --device gpu", "--device must be one of auto, cpu, not gpu; see dafuse x --help"),
        ("m -a", "a name that begins with a dash comes after two of them: -- -a"),
    ],
)
def test_a_mistake_is_one_line(words: str, expected: str) -> None:
    with pytest.raises(DafuseError) as caught:
        given(*words.split())
    assert str(caught.value).endswith(expected)


def test_help_shows_options_with_hyphens_and_their_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    with pytest.raises(SystemExit) as ended:
        call(learned, "dafuse x", ["--help"])
    assert not ended.value.code
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "--epochs INT passes over the images [20]" in lines
    assert "--weights-sha256 STR" in lines
    assert lines[lines.index("--flip also train on mirrored images") + 1] == "--no-flip"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_documents_each_of_its_options(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as ended:
        start(command, ["--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert f"dafuse {command}" in shown
    _, _, options = shown.partition(":\n")
    for line in options.splitlines():
        name, _, told = line.partition("  ")
        if name and not name.endswith(":") and "no-" not in name:
            assert told.strip(), line


def test_the_options_of_a_method_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["run", "--method", "lift", "--data", "/tmp", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--method.tune-tasks INT number of tasks that train an adapter" in shown
    assert "--data.split-seed INT" in shown
    assert "--method.alpha" not in shown


# each as it is to be typed, and as it could be typed before
@pytest.mark.parametrize(
    ("now", "before"),
    [
        ("--memory-gb 2", "--memory_gb 2"),
        ("--memory-gb .5", "--memory_gb=.5"),
        ("--weights-sha256 00", "--weights_sha256 00"),
        ("--observed-batch 3", "--observed_batch=3"),
        ("--method daf", "--method.name daf"),
        ("--method simplecil", "--method.name=simplecil"),
        ("--method.adapter-rank 8", "--method.adapter_rank 8"),
        ("--method daf --method.align-epochs 3", "--method=daf --method.align_epochs=3"),
        ("--method.no-use-gradient", "--method.use_gradient false"),
        ("--method.gamma-consistent", "--method.gamma_consistent=true"),
        ("--data glyphs --data.train-per-class 2", "--data glyphs --data.train_per_class 2"),
        ("--data glyphs", "--data.name glyphs"),
        ("--data /tmp", "--data folder --data.root /tmp"),
        ("--data /tmp --data.test-fraction .5", "--data=/tmp --data.test_fraction=.5"),
        ("--compiled", "--compiled true"),
        ("--no-compiled", "--compiled false"),
        ("--no-compiled", "--compiled no"),
        ("--compiled=null", "--compiled null"),
        ("--record", "--record=true"),
        ("--deterministic", "--deterministic yes"),
        ("--out x", "--out y --out x"),
        ("--weights=null", "--weights null"),
        ("", "--points null"),
        ("", "--method.rule dynamic"),
        ("--increment 10", "--increment=10"),
        ("--increment 6", "--increment 5 --increment 6"),
        ("--increment 6", "--increment [5] --increment 6"),
        ("--order natural", "--order seed --order natural"),
        ("--compiled=null", "--compiled none"),
        ("--seed 16", "--seed 0x10"),
    ],
)
def test_earlier_spellings_of_runs_are_read(now: str, before: str) -> None:
    assert parse(before.split()) == parse(now.split())


@pytest.mark.parametrize("increment", ["[60,2]", "[60, 2]"])
def test_lists_are_read(increment: str) -> None:
    for words in (["--increment", increment], [f"--increment={increment}"]):
        assert parse(words).increment == [60, 2]
    assert parse(["--order", "[1,0]"]).order == [1, 0]


def test_a_list_of_one_size_is_a_list() -> None:
    assert parse(["--increment", "[5]"]).increment == [5]


@pytest.mark.parametrize("text", ["yes", "1", "[a]", "{}", "-x", "a: b", "null x"])
def test_text_stays_text(text: str) -> None:
    assert parse([f"--out={text}"]).out == text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--memory_gb nan", "--memory-gb must be a number, not nan"),
        ("--method.lr inf", "--method.lr must be a number, not inf"),
        ("--method.alpha 1e999", "--method.alpha must be a number, not 1e999"),
        ("--method.alpha=\N{NO-BREAK SPACE}nan", "--method.alpha must be a number, not"),
        ("--data=", "data needs a name; dafuse list data shows those there are"),
        ("--method=", "method needs a name; dafuse list methods shows those there are"),
        ("--order 3", "--order must be one of seed, natural or a list like [1, 2], not 3"),
        ("--increment [1,null]", "--increment must be a whole number or a list like [1, 2], not ["),
        ("--increment [1.5]", "--increment must be a whole number or a list like [1, 2]"),
        ("--increment 1.5", "--increment must be a whole number or a list like [1, 2], not 1.5"),
        ("--order best", "--order must be one of seed, natural or a list like [1, 2], not best"),
        ("--method.rule best", "--method.rule must be one of dynamic, static, last, mean, not"),
        ("--data folder", "--data.root is missing"),
        ("--seed 5 daf-cifar100", "there is no place for daf-cifar100: one recipe comes first"),
        ("daf-cifar100 extra", "there is no place for extra: one recipe comes first, then options"),
        (
            "daf-cifar100 --cluster nonsense",
            "there is no place for nonsense: one recipe comes first, then options; the address of "
            "--cluster is HOST:PORT",
        ),
        ("--recipe x", "there is no option --recipe; see dafuse run --method daf --help; did you"),
        (
            "--bakcbone small",
            "there is no option --bakcbone; see dafuse run --method daf --help; did",
        ),
    ],
)
def test_mistakes_of_runs_are_one_line(words: str, expected: str) -> None:
    with pytest.raises(DafuseError) as caught:
        parse(words.split())
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("option", ["--method.align-epochs", "--method.align_epochs"])
def test_options_of_methods_are_read_for_experiments(option: str) -> None:
    for words in ([option, "3"], [f"{option}=3"]):
        with pytest.raises(DafuseError, match=r"no runs: leave --method.align-epochs out"):
            start("experiment", ["few-images", *words])
    with pytest.raises(DafuseError, match="no option --sede"):
        start("experiment", ["main-table", "--sede", "3"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("alpha --seeds x", "--seeds takes seeds, such as 1993,1994; not x"),
        ("alpha --seeds 1,,2", "--seeds takes seeds, such as 1993,1994; not 1,,2"),
        ("alpha --seeds 1.5 2", "--seeds takes seeds, such as 1993,1994; not 1.5"),
        ("alpha --seeds", "--seeds needs a value; see dafuse experiment --help"),
        ("--seeds=1 alpha", "NAME is missing: it comes before the options; see dafuse experiment"),
        ("alpha --method.epochs --increment 5", "--method.epochs needs a value; see dafuse run"),
        ("few-images --method.no-use-gradient", "few-images has no runs: leave --method.use-grad"),
    ],
)
def test_mistakes_of_experiments_are_one_line(words: str, told: str) -> None:
    with pytest.raises(DafuseError) as caught:
        start("experiment", words.split())
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--method.no-use-gradient", {"use_gradient": False}),
        ("--method.use_gradient false --method.epochs 3", {"use_gradient": False, "epochs": 3}),
        ("--method.gamma-consistent --increment 31", {"gamma_consistent": True}),
        ("--method.epochs 3 --method.epochs=4", {"epochs": 4}),
    ],
)
def test_options_of_methods_are_typed_for_experiments_as_for_runs(
    words: str, expected: dict[str, Any]
) -> None:
    typed, rest = method_options(words.split())
    _, common = parsed(rest, typed, EXPERIMENTS["alpha"])
    assert common == expected


def test_ranges_and_names_are_told_in_words() -> None:
    for option in ("--max-body-mb", "--queue"):
        with pytest.raises(DafuseError, match=f"^{option} must be a number above 0$"):
            start("serve", ["m", f"{option}=0"])
    with pytest.raises(DafuseError, match=r"^the test fraction must be at least 0 and below 1"):
        split_per_class(np.zeros(3, dtype=int), ["a"], 1.5, 0)
    with pytest.raises(DafuseError, match=r"^no backbone is called ''$"):
        prepare(RunConfig(backbone=""))


def test_dashes_are_explained_where_a_name_may_follow() -> None:
    with pytest.raises(DafuseError) as caught:
        parse(["-x"])
    assert "two of them" not in str(caught.value)


def test_help_says_in_whole_lines_how_a_command_is_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for command, usage in (
        ("list", "dafuse list [WHAT]\n"),
        ("run", "dafuse run --method daf [OPTIONS] [RECIPE]\n"),
        ("predict", "dafuse predict [OPTIONS] MODEL IMAGES...\n"),
        ("bench", "dafuse bench [OPTIONS] [NAMES...]\n"),
    ):
        with pytest.raises(SystemExit):
            start(command, ["--help"])
        shown = capsys.readouterr().out
        assert shown.startswith(usage)
        assert "|INT" not in shown
        if command == "predict":
            assert "cannot be read or found is named; the others are still answered.\n" in shown


def test_other_commands_read_earlier_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Stop(Exception):
        pass

    def remember(*words: Any, **options: Any) -> None:
        asked.append((words, options))
        raise Stop

    monkeypatch.setattr("dafuse.data.own_data.lesson_images", lambda *_: None)
    monkeypatch.setattr("dafuse.commands.learn.open_or_create", remember)
    for spelled in ("--weights_sha256", "--weights-sha256"):
        with pytest.raises(Stop):
            start("learn", ["m", "s", "--tune", "--set", "rank=8", "--threads=2", spelled, "00"])
    network = open_model.LessonNetwork(threads=2)
    assert asked[0] == asked[1]
    assert asked[0][0] == ("m", network, {"rank": 8, "tune": "first"}, "00")
    asked.clear()
    monkeypatch.setattr(predict, "find_images", remember)
    for one, other in (("--json", "--csv"), ("--no-unknown", "--threshold=1")):
        with pytest.raises(DafuseError, match=r"^either --.* or --.*, not both"):
            start("predict", ["m", "a.png", one, other])
    with pytest.raises(Stop):
        start("predict", ["m", "a.png", "--top", "2", "b.png", "--device", "cpu"])
    assert asked == [((("a.png", "b.png"),), {})]
