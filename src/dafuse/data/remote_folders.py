"""Folders of images by class in a store that lists its files, such as s3://.

s3://bucket/photos/<class>/**.jpg                               as it is
s3://bucket/photos/train/<class>/**.jpg  .../test/<class>/...   in two parts (also val/ or valid/)
"""

from pathlib import PurePosixPath

from dafuse.data.dataset import Listed, Part, Skipped
from dafuse.data.folders import TEST_FOLDERS
from dafuse.data.formats import is_image, readable_suffixes, why_not_read
from dafuse.data.remote import files_below, lists_folders
from dafuse.data.stored import StoredImage
from dafuse.data.tars import PATTERN, names_tars, tars_in
from dafuse.errors import DafuseError

TABLES = (".csv", ".parquet", ".pq")


def remote_kind(url: str) -> str | None:
    """Return the kind of source at a URL: tars, table, or classes, a folder of class folders."""
    if names_tars(url) or PATTERN.search(url):
        return "tars"
    if url.lower().endswith(TABLES):
        return "table"
    if not lists_folders(url):
        raise DafuseError(
            f"{url}: give a .tar, a .csv or a .parquet of this server; it does not list a folder"
        )
    return "tars" if tars_in(url) else "classes"


def remote_folder_part(url: str, part: Part) -> Listed:
    """The training or the test images of a folder; all of them where it does not come split."""
    top = url.rstrip("/") + "/"
    paths = [PurePosixPath(one.removeprefix(top)) for one in files_below(top)]
    folders = {path.parts[0].lower(): path.parts[0] for path in paths if len(path.parts) > 2}
    tests = next((folders[one] for one in TEST_FOLDERS if one in folders), None)
    if "train" in folders and tests is not None:
        top += (folders["train"] if part == "train" else tests) + "/"
        chosen = PurePosixPath(top.removeprefix(url.rstrip("/") + "/"))
        paths = [path.relative_to(chosen) for path in paths if path.is_relative_to(chosen)]
    items, names, skipped = [], [], []
    for path in paths:
        if any(name.startswith(".") for name in path.parts):
            continue
        if len(path.parts) < 2 or not is_image(path.name):
            why = "lies in no class folder" if is_image(path.name) else why_not_read(path.name)
            skipped.append(Skipped(f"{top}{path}", why))
            continue
        items.append(StoredImage(f"{top}{path}"))
        names.append(path.parts[0])
    if not items:
        raise DafuseError(
            f"there is no image in class folders of {url}; images end in "
            f"{' '.join(sorted(readable_suffixes()))}"
        )
    return Listed(items, names, skipped)
