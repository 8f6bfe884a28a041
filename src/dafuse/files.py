"""Files that are either whole or not there: atomic writes, and JSON whose damage is named.

write_json(folder / "results.json", results)   # a crash leaves the old file or the new one
results = read_json(folder / "results.json")
"""

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from dafuse.errors import DafuseError


def write_atomically(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Replace `path` by `data` (text as UTF-8) in one step that survives a crash or a power cut.

    The folder must exist. A link is written through, so that it stays a link.
    """
    target = Path(os.path.realpath(path))
    content = data.encode() if isinstance(data, str) else data
    # Beside the target, since a rename is atomic only within one file system, and opened by name
    # rather than by `tempfile`, whose files nobody but their owner could read.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise DafuseError(f"cannot write {path}: {error.strerror or error}") from error
        raise
    _sync_folder(target.parent)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """`value` as indented JSON. What JSON cannot hold raises before anything is touched.

    NaN and infinities are written as Python reads them, so that numbers come back unchanged.
    """
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise DafuseError(f"{path} does not exist") from error
    except OSError as error:
        raise DafuseError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise DafuseError(f"{path} is not whole JSON (cut off or damaged): {error}") from error


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; some file systems and Windows cannot, and need not."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
