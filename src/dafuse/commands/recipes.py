"""Recipes: options of a run in a YAML file, which may be anybody's.

A few aliases of aliases stand for more values than fit into any memory. So the size of what a file
stands for is known before anything is built of it; and no key stands twice.
"""

from pathlib import Path
from typing import Any

import yaml

from dafuse.errors import DafuseError, did_you_mean

RECIPES = Path(__file__).parent.parent / "recipes"
NAMED = ("method", "data")  # options that are a name with options of its own
NOTES = "expected"  # a recipe's own section: what the run should give, and who says so
MOST_BYTES = 2**18  # bytes of a file
MOST = 20_000  # values, each counted as often as an alias stands for it
MOST_DIGITS = 1000  # of a number as it is written
DEEPEST_RECIPE = 40
GREATEST = 10**30
WRONG = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


def read_recipe(name: str) -> dict[str, Any]:
    """Return a recipe by path or by name, with `method: daf` as `method: {name: daf}`."""
    path = Path(name)
    if path.name and not path.is_file() and path.parent.name in ("", "recipes"):
        path = RECIPES / path.with_suffix(".yaml").name
    if not path.is_file():
        hint = did_you_mean(path.stem, [recipe.stem for recipe in RECIPES.glob("*.yaml")])
        raise DafuseError(
            f"no recipe {name or repr(name)}; dafuse list recipes shows those there are{hint}"
        )
    recipe = _read_yaml(path)
    if not isinstance(recipe, dict):
        raise DafuseError(f"{path} must hold keys and values")
    recipe.pop(NOTES, None)
    for key in NAMED:
        if isinstance(recipe.get(key), str):
            recipe[key] = {"name": recipe[key]}
        named = recipe.get(key, {})
        if not isinstance(named, dict) or not isinstance(named.get("name", ""), str):
            raise DafuseError(f"{path}: {key} must be a name, or a name with options")
    for key, value in recipe.items():
        inner = value.items() if key in NAMED else [("", value)]
        for option, one in inner:
            if isinstance(one, dict):
                told = f"{key}.{option}".rstrip(".")
                raise DafuseError(f"{path}: {told} must have a value, not keys of its own")
    return recipe


def expected(recipe: Path) -> dict[str, Any]:
    """Return what a recipe of the package should give, and who says so; empty where nobody does."""
    found: dict[str, Any] = _read_yaml(recipe).get(NOTES, {})
    return found


def _read_yaml(path: Path) -> Any:
    """Read a file's words, numbers, true, false and null, in lists and under keys."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DafuseError(f"{path} has more than {MOST_BYTES // 1024} KiB: that is no recipe")
    loader = None
    try:
        loader = yaml.SafeLoader(content.decode("utf-8-sig"))
        node = loader.get_single_node()  # in which an alias is a second place of the same node
        if node is not None:
            _measure(node, {})
        value = None if node is None else loader.construct_document(node)
    except RecursionError:
        raise DafuseError(f"{path}: lists and keys lie in each other too deeply") from None
    except WRONG as error:
        raise DafuseError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    finally:
        if loader is not None:
            loader.dispose()
    _require_plain(value, path, "")
    return value


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Return how many values a node stands for, and how deep they lie in each other."""
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise yaml.YAMLError(f"{_place(node)}: an alias stands for what it is in itself")
        return found
    known[id(node)] = None
    count, depth = 1, 0
    if node.tag.endswith(":int") and len(node.value) > MOST_DIGITS:
        raise yaml.YAMLError(f"{_place(node)}: the number has too many digits")
    if isinstance(node, yaml.MappingNode):
        _require_distinct(node)
    if isinstance(node, yaml.CollectionNode):
        pairs = isinstance(node, yaml.MappingNode)
        inner = [one for pair in node.value for one in pair] if pairs else node.value
        for one in inner:
            more, deeper = _measure(one, known)
            count, depth = count + more, max(depth, deeper)
            if count > MOST:
                raise yaml.YAMLError(
                    f"{_place(node)}: more than {MOST:,} values, those of aliases too"
                )
    if depth >= DEEPEST_RECIPE:
        raise yaml.YAMLError("lists and keys lie in each other too deeply")
    known[id(node)] = count, depth + 1
    return count, depth + 1


def _require_distinct(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise yaml.YAMLError(f"{_place(key)}: the key {key.value!r} stands twice")
            seen.add((key.tag, key.value))


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def _require_plain(value: Any, path: Path, where: str) -> None:
    """Refuse what no option takes and JSON cannot hold: dates, binary, sets, keys but words."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise DafuseError(
                    f"{path}: the key {key!s} is not a word; put it in quotes if it is meant so"
                )
            _require_plain(inner, path, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for inner in value:
            _require_plain(inner, path, where)
    elif isinstance(value, int) and abs(value) >= GREATEST:
        raise DafuseError(f"{path}: {where or 'it'} has too many digits")
    elif value is not None and not isinstance(value, str | int | float | bool):
        kind = type(value).__name__
        raise DafuseError(f"{path}: {where or 'it'} is a {kind}; put it in quotes if it is a word")
