"""Recipes that nobody should write: each is refused in a sentence, whatever is wrong with it."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dafuse.commands.recipes import RECIPES, read_recipe
from dafuse.commands.run import parse
from dafuse.errors import DafuseError

# each stands for ten of those before: 10^12 words
LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{k}: &a{k} [{','.join([f'*a{k - 1}'] * 10)}]\n" for k in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{k}: &a{k} {{<<: [{','.join([f'*a{k - 1}'] * 10)}]}}\n" for k in range(1, 12)
)
IN_A_LINE = LAUGHS.replace("\n", ",")
HAND_MADE: dict[str, tuple[str | bytes, str]] = {  # what it is, and what is said of it
    "aliases that expand": (LAUGHS, "more than 20,000 values, those of aliases too"),
    "merges that expand": (MERGES, "more than 20,000 values, those of aliases too"),
    "an alias in itself": ("order: &a [1, *a]", "an alias stands for what it is in itself"),
    "aliases in a text": (
        f"order: '{{{IN_A_LINE}}}'",
        "order must be one of seed, natural or a list like [1, 2], not {a0: &a0 [x,x",
    ),
    "lists in each other": ("order: " + "[" * 60 + "]" * 60, "in each other too deeply"),
    "lists in each other without end": ("[" * 50_000, "in each other too deeply"),
    "lists in a text": ("order: '" + "[" * 999 + "]" * 999 + "'", "a list is too deep"),
    "keys in each other": ("a: {" * 2000, "in each other too deeply"),
    "deep options": ("method: {name: daf, lr: {a: {b: 1}}}", "method.lr must have a value"),
    "an option without a value": ("increment: {}", "increment must have a value"),
    "a number for a key": ("5: 6", "the key 5 is not a word"),
    "a date for a key": ("2020-01-01: 6", "the key 2020-01-01 is not a word"),
    "null for a key": ("null: 6", "the key None is not a word"),
    "a truth for a key": ("on: 6", "the key True is not a word"),
    "a list for a key": ("[a, b]: 6", "unhashable key"),
    "a number for a key within": ("method: {name: daf, 5: 6}", "the key 5 is not a word"),
    "a date": ("order: 2020-01-01", "order is a date; put it in quotes"),
    "a date that is none": ("order: 2020-13-41", "is not YAML"),
    "binary": ("order: !!binary aGFsbG8=", "order is a bytes"),
    "a set": ("order: !!set {a, b}", "order is a set"),
    "code": ("order: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    "a tag that does not fit": ("order: !!int x", "is not YAML"),
    "another tag that does not fit": ("order: !!bool x", "is not YAML"),
    "a long list": ("order: [" + "1," * 21_000 + "]", "line 1: more than 20,000 values"),
    "a number without end": ("seed: " + "9" * 5000, "line 1: the number has too many digits"),
    "a number in sixties": ("seed: 1" + ":00" * 4000, "the number has too many digits"),
    "a number of forty digits": ("seed: " + "9" * 40, "seed has too many digits"),
    "the name of an argument": ("recipe: x", "recipe.yaml has 'recipe', which is no option"),
    "empty": ("", "must hold keys and values"),
    "a list at the top": ("- a\n- b", "must hold keys and values"),
    "two documents": ("a: 1\n---\nb: 2", "is not YAML"),
    "a key that stands twice": ("seed: 1\nseed: 2", "line 2: the key 'seed' stands twice"),
    "an option that stands twice": ("method: {lr: 1, lr: 2}", "the key 'lr' stands twice"),
    "no text": (b"\x00\xff\xfe\x80", "is not YAML"),
    "a NUL": (b"a: \x00", "is not YAML"),
    "huge": ("# " + "x" * 300_000, "has more than 256 KiB"),
    "not a number": ("memory_gb: .nan", "memory_gb"),
    "not a number of images": ("increment: .nan", "increment"),
    "infinite": ("seed: .inf", "seed"),
    "a word for a number": ("seed: many", "seed"),
    "a list for a number": ("seed: [1]", "seed"),
    "words for numbers": ("increment: [a, b]", "increment"),
    "a number for a method": ("method: 5", "method must be a name"),
    "a number for a method's name": ("method: {name: 5}", "method must be a name"),
    "no letter for a method": ("method: ''", "method needs a name"),
    "null for the data": ("data: null", "data must be a name"),
    "a list for the data's name": ("data: {name: [a]}", "data must be a name"),
    "a method that there is not": ("method: dof", "no method is called 'dof'"),
    "an option that there is not": (
        "sead: 1",
        "recipe.yaml has 'sead', which is no option; did you mean seed?",
    ),
    "half an option": ("see: 5", "yaml has 'see', which is no option; did you mean seed?"),
    "an equals sign": ('"=": 3', "recipe.yaml has '=', which is no option"),
    "no key": ('"": 3', "recipe.yaml has '', which is no option"),
    "a key in a number": ("seed.x: 3", "recipe.yaml has 'seed.x', which is no option"),
    "an option of the parser": ("help: 1", "help"),
    "two options in one": ("'seed=5 --increment': 3", "seed"),
    "a word for null": ("method: {lr: null}", "lr"),
}


@pytest.fixture
def usual_depth() -> Iterator[None]:
    """Python's own limit of recursion: torch's exporter, in other tests, raises it for good."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("usual_depth")
@pytest.mark.parametrize("kind", HAND_MADE)
def test_a_recipe_of_this_kind_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    content, said = HAND_MADE[kind]
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DafuseError) as refusal:
        parse([str(file)])
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 2000


@pytest.mark.parametrize(
    "text", [f"{{{IN_A_LINE}}}", "[" * 50_000, "[" + "9" * 5000 + "]", "[[1]]", "[1,", "{}"]
)
def test_what_is_typed_is_no_yaml(text: str) -> None:
    for words in (["--order", text], [f"--order={text}"]):
        with pytest.raises(DafuseError) as refusal:
            parse(words)
        assert "order must be" in str(refusal.value) or "a list is too deep" in str(refusal.value)
        assert len(str(refusal.value)) < 500


def test_a_recipe_may_have_aliases_and_a_mark_of_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    text = "increment: &few [1, 2]\norder: *few\nmethod: lift\n"
    file.write_text(text, encoding="utf-8-sig")
    asked = read_recipe(str(file))
    assert asked == {"increment": [1, 2], "order": [1, 2], "method": {"name": "lift"}}


@pytest.mark.parametrize("sizes", [[], [5], [5, 6]])
def test_a_list_in_a_recipe_stays_one(sizes: list[int], tmp_path: Path) -> None:
    for text in (f"increment: {sizes}", f"increment: '{sizes}'"):
        (tmp_path / "a.yaml").write_text(text)
        assert parse([str(tmp_path / "a.yaml")]).increment == sizes


def test_recipes_of_the_package_are_read_as_before() -> None:
    for path in sorted(RECIPES.glob("*.yaml")):
        plain = yaml.safe_load(path.read_text())
        plain.pop("expected", None)
        assert read_recipe(path.stem).keys() == plain.keys()


def test_what_is_no_file_is_no_recipe(tmp_path: Path) -> None:
    for name in (str(tmp_path), "", ".", "..", "/", "/dev/zero", "a\0b", "x" * 200):
        with pytest.raises(DafuseError, match="no recipe"):
            parse([name])


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("memory_gb: x", "memory_gb must be a number, not x"),
        (
            "increment: [[1, 2], [3]]",
            "increment must be a whole number or a list like [1, 2], not [[1, 2], [3]]",
        ),
        (
            "increment: [1, null]",
            "increment must be a whole number or a list like [1, 2], not [1, null]",
        ),
        ("order: 3", "order must be one of seed, natural or a list like [1, 2], not 3"),
        ("compiled: 1", "compiled must be true or false, not 1"),
        ("seed: x", "seed must be a whole number, not x"),
        ("method: {name: daf, alpha: much}", "method.alpha must be a number, not much"),
        (
            "method: {name: daf, rule: best}",
            "method.rule must be one of dynamic, static, last, mean, not best",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_told_in_words(tmp_path: Path, recipe: str, said: str) -> None:
    (tmp_path / "a.yaml").write_text(recipe)
    with pytest.raises(DafuseError, match=re.escape(f"a.yaml: {said}; see ")):
        parse([str(tmp_path / "a.yaml")])
