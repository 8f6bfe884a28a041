"""The command line as a newcomer types it; every command of the README and of the guide."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from dafuse.commands.recipes import RECIPES, read_recipe
from dafuse.commands.run import parse
from dafuse.engine.config import LATER
from dafuse.errors import DafuseError
from dafuse.methods.registry import with_defaults
from faults.command import Ended
from helpers import processes
from helpers.places import ROOT
from helpers.processes import clean_environment

README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
GUIDE = (ROOT / "docs" / "guide.md").read_text()  # goes on where the README ends
CODE = (ROOT / "docs" / "code.md").read_text()
COMMANDS = re.findall(r"^    (dafuse [^#\n]*)", README + GUIDE, re.MULTILINE)

# what makes these commands quick here; what they mean stays
QUICK = {
    "--data glyphs": "--data glyphs --data.train_per_class 1 --data.test_per_class 1",
    "daf-cifar100-deit-tiny": "daf-cifar100-deit-tiny --data {images} --increment 2 "
    "--backbone embedded --precision fp32",
    "export small": "export embedded",  # whose weights are here
    "path/to/images": "{images}",
    "--parallel 2": "--dry-run",  # tests/commands/test_grid.py makes one
    "--cluster": "",  # tests/product/test_spread.py has a cluster
}
TRAINING = " --method.epochs 1 --method.align_epochs 1"
TEACHING = " --device cpu"


def dafuse(*arguments: str, cwd: Path | None = None) -> Ended:
    """A command in a forked process: importing everything took longest."""
    return processes.dafuse(*arguments, folder=cwd)


def started(*arguments: str) -> str:
    """What a command prints that is started as a newcomer starts it."""
    command = [sys.executable, "-m", "dafuse", *arguments]
    environment = clean_environment()
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in ("cat", "dog", "owl", "bee"):
        (root / name).mkdir()
        for i in range(3):
            pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.jpg")
    return root


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    """Make a folder with the photos of the README's first story."""
    here = tmp_path_factory.mktemp("workplace")
    for year, names in (("2024", ("cat", "dog")), ("2025", ("cat", "owl"))):
        for name in names:
            shutil.copytree(images / name, here / "photos" / year / name)
    shutil.copy(images / "cat" / "0.jpg", here / "cat.jpg")
    return here


def test_the_readme_names_each_main_path_and_fits_three_screens() -> None:
    shown = {command.split()[1] for command in re.findall(r"^    (dafuse .*)", README, re.M)}
    main = "learn predict evaluate export info forget undo merge list doctor run experiment report"
    assert shown >= set(main.split())
    assert len(README.splitlines()) <= 120
    assert max(map(len, README.splitlines())) <= 100


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_and_the_guide(command: str, images: Path, workplace: Path) -> None:
    """Run them in the order of the pages, in one folder: the report comes after the runs."""
    for shown, quick in QUICK.items():
        command = command.replace(shown, quick.format(images=images))
    if command.startswith("dafuse run"):
        command += " --device cpu" + (
            "" if "simplecil" in command or "lift" in command else TRAINING
        )
    if command.startswith("dafuse learn"):
        command += TEACHING
    done = dafuse(*shlex.split(command)[1:], cwd=workplace)
    assert done.status == 0, done.err
    assert done.out.strip()


def test_python_of_the_readme_and_the_guide(workplace: Path) -> None:
    blocks = re.findall(r"^( *)```python\n(.*?)```", README + GUIDE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for indent, code in blocks:
        quick = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        quick = quick.replace('"glyphs"}', '"glyphs", "train_per_class": 1, "test_per_class": 1}')
        done = subprocess.run(
            [sys.executable, "-c", quick], cwd=workplace, env=clean_environment(), check=False
        )
        assert done.returncode == 0


def test_the_tutorial(tmp_path: Path) -> None:
    """All of it in order: each command prints what is shown after it."""
    steps = re.findall(
        r"```python\n(.*?)```|((?:^    (?:dafuse|rm) [^\n]*\n)+)\n```\n(.*?)```",
        TUTORIAL,
        re.M | re.S,
    )
    assert len(steps) >= 12
    for drawing, commands, shown in steps:
        if drawing:
            python = [sys.executable, "-c", drawing]
            subprocess.run(python, cwd=tmp_path, env=clean_environment(), check=True)
            continue
        printed = ""
        for command in commands.splitlines():
            name, *arguments = shlex.split(command)
            if name == "rm":
                shutil.rmtree(tmp_path / arguments[-1])
                continue
            assert name == "dafuse"
            done = dafuse(*arguments, cwd=tmp_path)
            assert done.status == 0, done.err
            printed += done.err + done.out
        assert_printed(shown, printed)


ELSEWHERE = (  # what differs from machine to machine, and what stands for it
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "DATE"),
    (r"in [\d.]+ (s|min)\b", "TIME"),
    (r"/\S*/page\.html", "PAGE"),
    (r"\d\S*e-\d+|\d[\d,.]*[.,]\d+(?!%|\d)", "NUMBER"),
    (r"(taken for .*): \d+$", r"\1: NUMBER"),
)
PERCENT = re.compile(r" *\b(\d+\.\d)%")  # with the spaces that align it
PROGRESS = re.compile(r"\w[\w ]*: \d[\d,]* of [\d,]+ \(\d+%\), .* left")  # of a busy machine


def assert_printed(shown: str, printed: str) -> None:
    """Line by line, where `...` stands for any lines; each percentage within ten points."""
    lines = iter(line for line in printed.splitlines() if not PROGRESS.match(line))
    skips = False
    for expected in shown.splitlines():
        if expected == "...":
            skips = True
            continue
        found = next((line for line in lines if not skips or same_words(expected, line)), None)
        assert found is not None, f"not printed: {expected}\n{printed}"
        assert same_words(expected, found), f"shown: {expected}\nprinted: {found}"
        shares = [[float(share) for share in PERCENT.findall(line)] for line in (expected, found)]
        assert shares[1] == pytest.approx(shares[0], abs=10), f"shown: {expected}\nprinted: {found}"
        skips = False
    assert skips or next(lines, None) is None, f"more is printed than shown:\n{printed}"


def test_what_is_printed_is_compared_without_progress() -> None:
    progress = "evaluate: 65 of 180 (36%), 7 s left\n"
    assert_printed("done: 97.5% right\n", f"{progress}done: 96.0% right\n")
    with pytest.raises(AssertionError):
        assert_printed("done: 97.5% right\n", f"{progress}done: 70.0% right\n")


def same_words(one: str, other: str) -> bool:
    return masked(one) == masked(other)


def masked(line: str) -> str:
    for pattern, instead in ELSEWHERE:
        line = re.sub(pattern, instead, line)
    return PERCENT.sub(" %", line).rstrip()


def test_the_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_files_of_the_reading_order_exist() -> None:
    rooms = re.findall(r"^\d+\. `(\w+)/`(.*?)(?=^\d+\.|\Z)", CODE, re.M | re.S)
    assert len(rooms) == 12
    for folder, text in rooms:
        for file in re.findall(r"`(\w+\.py)`", text):
            where = ROOT / "src" / "dafuse"
            assert (where / folder / file).exists() or (where / file).exists(), file


def test_help_lists_every_command() -> None:
    from dafuse.cli import COMMANDS as TABLE

    listed = started("--help")
    for name in TABLE:
        assert f"  {name} " in listed
        assert dafuse(name, "--help").status == 0
    assert started("--version").startswith("dafuse ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["lern"], "no command is called 'lern'; see dafuse --help; did you mean learn?"),
        (["run", "--method", "dfa"], "no method is called 'dfa'"),
        (["run", "--method", "simplcil"], "did you mean simplecil?"),
        (["run", "--method.alhpa", "2"], "did you mean --method.alpha?"),
        (["run", "--backbone", "deit_tiny_patch16_24"], "did you mean deit_tiny_patch16_224"),
        (["run", "daf-cifar10-deit-tiny"], "did you mean daf-cifar100-deit-tiny?"),
        (["experiment", "tabel1"], "no experiment is called 'tabel1'"),
        (["run", "--method.alpha", "much"], "method.alpha"),
        (["run", "--method.rule", "best"], "method.rule"),
        (["run", "--data", "nowhere/at/all"], "no data set 'nowhere/at/all'"),
        (["run", "--data", "cifar10"], "did you mean cifar100?"),
        (["run", "no-such-recipe"], "no recipe no-such-recipe"),
        (["run", "--backbone", "vit_base_patch16_224"], "take --backbone vit_base_patch16_224."),
        (["run", "--device", "cuda"], "cuda"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], expected: str, tmp_path: Path) -> None:
    done = dafuse(*arguments, cwd=tmp_path)
    assert done.status == 2
    assert expected in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert "Traceback" not in done.err


def test_recipes_parse_and_say_what_they_are() -> None:
    assert sorted(RECIPES.glob("*.yaml"))
    for path in RECIPES.glob("*.yaml"):
        assert path.read_text().startswith("# "), path
        told = read_recipe(str(path))
        assert read_recipe(f"recipes/{path.name}") == told == read_recipe(path.stem)
        assert parse([path.stem]).method["name"] == told["method"]["name"]


def test_the_command_line_wins_over_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "method: {name: daf, alpha: 3, epochs: 4}\ndata: glyphs\nincrement: [60, 2]\n"
    )
    config = parse([str(recipe), "--method.alpha", "2"])
    assert (config.method["alpha"], config.method["epochs"]) == (2.0, 4)
    assert config.increment == [60, 2]
    other = parse([str(recipe), "--method", "simplecil"])  # the recipe's options were daf's
    assert other.method == {"name": "simplecil"}


@pytest.mark.parametrize(
    "text",
    [
        "mehtod: daf",
        "method: {name: daf, alhpa: 3}",
        "method: {name: daf, rule: dinamic}",
        "method: {name: daf, epochs: x}",
        "method: [daf]",
        "method:",
        "increment: many",
        "- a list",
        "a: [b",
    ],
)
def test_bad_recipes_are_named(text: str, tmp_path: Path) -> None:
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(text)
    with pytest.raises(DafuseError):
        parse([str(recipe)])


def test_resolved_configuration_is_complete() -> None:
    config = parse(["--increment", "7"])
    assert config.method["alpha"] == 1.25
    assert config.data == {
        "name": "glyphs", "train_per_class": 50, "test_per_class": 20, "seed": 0, "size": 64
    }  # fmt: skip
    assert config.hash() == parse(["--increment", "7", "--out", "elsewhere"]).hash()
    assert config.hash() != parse(["--increment", "8"]).hash()
    assert yaml.safe_dump(config.method)  # nothing in it that YAML cannot hold


def test_options_that_came_later_leave_published_hashes_alone() -> None:
    published = "--data cifar100 --increment 5 --precision bf16"  # in docs/ledgers/methods.csv
    published += " --backbone deit_tiny_patch16_224.fb_in1k"
    config = parse([*published.split(), "--method", "daf"])
    assert config.hash().startswith("56599e22")
    assert config.method["head"] == "aligned"
    assert "head" not in config.asked()["method"]
    other = parse([*published.split(), "--method", "daf", "--method.head", "ridge"])
    assert other.asked()["method"]["head"] == "ridge"
    assert other.hash() != config.hash()
    for name, later in LATER.items():
        assert later.items() <= with_defaults(name, {}).items()


def test_the_demo_of_research_shows_four_rows_and_a_page(tmp_path: Path) -> None:
    """The real demo, only with fewer images and epochs: the same four runs, table and page."""
    out = tmp_path / "demo"
    done = processes.dafuse("demo-research", "--out", out, before=processes.short_demo)
    assert done.status == 0, done.err
    assert re.search(r"Method +daf +daf \(rule=last\) +lift +simplecil", done.out)
    page = out / "report.html"
    assert str(page) in done.out.replace("\n", "")
    assert "simplecil" in page.read_text()
