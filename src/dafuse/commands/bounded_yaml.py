"""YAML as plain values: its size is known before anything is built of it, and no key stands twice.

A few aliases of aliases stand for more values than fit into any memory, so they are counted first.
"""

from pathlib import Path
from typing import Any

import yaml

from dafuse.errors import DafuseError

MOST_BYTES = 2**18  # bytes of a file
MOST = 20_000  # values, each counted as often as an alias stands for it
DEEPEST = 40
GREATEST = 10**30
WRONG = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


class Unbounded(yaml.YAMLError):
    """YAML that is larger or deeper than anything that a person writes."""


def read_yaml(path: Path) -> Any:
    """What a file holds: words, numbers, true, false and null, in lists and under words."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DafuseError(f"{path} has more than {MOST_BYTES // 1024} KiB: that is no recipe")
    loader = None
    try:
        loader = yaml.SafeLoader(content.decode("utf-8-sig"))
        node = _composed(loader)
        value = None if node is None else loader.construct_document(node)
    except WRONG as error:
        raise DafuseError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    finally:
        if loader is not None:
            loader.dispose()
    _require_plain(value, path, "")
    return value


def require_bounded(text: str, where: str) -> None:
    """Refuse the text of an option that, read as YAML, is too large; any other text is well."""
    if len(text) > MOST_BYTES:
        raise DafuseError(f"{where} has more than {MOST_BYTES // 1024} KiB: that is no option")
    if not any(sign in text for sign in "[{*"):
        return
    try:
        _composed(yaml.SafeLoader(text))
    except Unbounded as error:
        raise DafuseError(f"{where}: {error}") from None
    except yaml.YAMLError:
        return  # a word, such as a path


def _composed(loader: yaml.SafeLoader) -> yaml.Node | None:
    """The document as nodes, in which an alias is a second place of the same node."""
    try:
        node: yaml.Node | None = loader.get_single_node()
        if node is not None:
            _measure(node, {})
    except RecursionError:
        raise Unbounded("lists and keys lie in each other too deeply") from None
    return node


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """How many values a node stands for, and how deep they lie in each other."""
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise Unbounded(f"{_place(node)}: an alias stands for what it is in itself")
        return found
    known[id(node)] = None
    count, depth = 1, 0
    if isinstance(node, yaml.MappingNode):
        _require_distinct(node)
    if isinstance(node, yaml.CollectionNode):
        pairs = isinstance(node, yaml.MappingNode)
        inner = [one for pair in node.value for one in pair] if pairs else node.value
        for one in inner:
            more, deeper = _measure(one, known)
            count, depth = count + more, max(depth, deeper)
            if count > MOST:
                raise Unbounded(f"{_place(node)}: aliases stand for more than {MOST:,} values")
    if depth >= DEEPEST:
        raise Unbounded("lists and keys lie in each other too deeply")
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
