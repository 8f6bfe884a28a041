"""One's own data at a path: class folders, a table of paths and labels, an .npz of pixels."""

from pathlib import Path

from dafuse.data.arrays import arrays_part
from dafuse.data.folders import folder_part
from dafuse.data.formats import looks_like_an_image
from dafuse.data.listed import Listed, Part
from dafuse.data.tables import table_part
from dafuse.errors import DafuseError

KINDS = {".csv": "table", ".parquet": "table", ".pq": "table", ".npz": "arrays"}
WANTED = "a folder with a folder for each class, a .csv or .parquet of paths and labels, or an .npz"


def kind_of(path: str | Path) -> str | None:
    """The kind of source at the path; None where there is none."""
    there = Path(path).expanduser()
    if there.is_dir():
        return "folder"
    return KINDS.get(there.suffix.lower()) if there.is_file() else None


def part_of(path: str | Path, part: Part) -> Listed:
    """The training or the test images of a source; all of them where it does not come split."""
    there, kind = Path(path).expanduser(), kind_of(path)
    if kind == "folder":
        return folder_part(there, part)
    if kind == "table":
        return table_part(there, part)
    if kind == "arrays":
        return arrays_part(there, part)
    if not there.exists():
        raise DafuseError(f"there is no folder {there}, nor a file: check the path")
    what = "one image" if looks_like_an_image(there.name) else "none of these"
    raise DafuseError(f"give {WANTED}; {there} is {what}")
