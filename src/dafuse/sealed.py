"""JSON with the SHA-256 of its contents, so that a number changed on disk is not believed.

write_sealed(folder / "results.json", results, inside=folder)
results = read_sealed(folder / "results.json", "delete it to measure again", inside=folder)

``inside`` is the folder of ours in which no link is followed, as in `dafuse.files`.
"""

import hashlib
import json
from typing import Any

from dafuse.errors import DafuseError
from dafuse.files import Name, read_json, refuse_links, write_json

SEAL = "sha256_of_contents"  # the last key of a sealed file


def write_sealed(path: Name, content: dict[str, Any], inside: Name | None = None) -> None:
    """Write the content as JSON, with its SHA-256 as the last key."""
    write_json(path, {**content, SEAL: _digest(content)}, inside)


def read_sealed(path: Name, remedy: str, inside: Name | None = None) -> Any:
    """Return what was written; a damaged or changed file is refused with the remedy at the end.

    Files written before there were seals have none, and are read as they are.
    """
    if inside is not None:
        refuse_links(path, inside)  # the remedy of a link is to put back what it leads to
    try:
        content = read_json(path, inside)
    except DafuseError as error:
        raise DafuseError(f"{error}; {remedy}") from None
    if not isinstance(content, dict) or SEAL not in content:
        return content
    expected = content.pop(SEAL)
    try:
        true = expected == _digest(content)
    except RecursionError:
        true = False
    if not true:
        raise DafuseError(
            f"{path} was changed or damaged: its contents do not have the SHA-256 that it names; "
            f"{remedy}"
        )
    return content


def _digest(content: dict[str, Any]) -> str:
    """Return the SHA-256 of the JSON, keys in their order, however it is spaced in the file."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
