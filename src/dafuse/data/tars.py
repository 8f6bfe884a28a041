"""Images in tar files, in the layout of WebDataset: `name.jpg` and its label beside it.

    photos-000.tar: 0001.jpg 0001.cls 0002.jpg 0002.cls ...

The label is in `name.cls`, `name.json` (its label, class, class_name, cls or category) or
`name.txt`: a class name, or a number. Numbers stand for the lines of a `classes.txt` or
`classnames.txt`, in the tar or beside it; without one they are the names. In a tar without any
label, images lie in folders named by class. A tar is not unpacked: its headers tell where in it an
image is.
"""

import glob
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dafuse.data.dataset import Listed, Part, Skipped
from dafuse.data.folders import TEST_FOLDERS
from dafuse.data.formats import is_image
from dafuse.data.remote import files_below, is_url, matching, read_through, read_whole
from dafuse.data.splits import first_few
from dafuse.data.stored import StoredImage
from dafuse.errors import DafuseError

SUFFIX = ".tar"
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
LABELS = (".cls", ".json", ".txt")  # the first of these beside an image has its label
KEYS = ("label", "class", "class_name", "cls", "category")  # in a .json
CLASSES = ("classes.txt", "classnames.txt")
LONGEST = 2**16  # bytes of a label's file, and of one header
MOST_CLASSES = 2**24  # bytes of a file of class names
MOST_TARS = 100_000
BRACES = re.compile(r"\{([^{}]*)\}")
PATTERN = re.compile(r"[{*?\[]")


def names_tars(text: str) -> bool:
    """Tell whether this names a tar, several by a pattern, or a packed one, which is refused."""
    return text.lower().endswith((SUFFIX, *PACKED))


def tar_part(text: str, part: Part) -> Listed:
    """The training or the test images of tars: a tar, a pattern of names, or a folder of them.

    Tars whose names begin with train, test, val or valid are split so; others are not split.
    """
    tars = _of_part(_tars(text), part)
    names: list[str] | None = None
    items: list[StoredImage] = []
    labels: list[str] = []
    skipped: list[Skipped] = []
    for tar in tars:
        found = _index(tar)  # what is wrong with the first is said before files beside it are read
        names = _class_names(tars) if names is None else names
        for image, label in found.labelled(names):
            items.append(image)
            labels.append(label)
        skipped += found.skipped
    if not items:
        raise DafuseError(f"there is no image in {first_few(tars)}")
    return Listed(items, labels, skipped)


def _tars(text: str) -> list[str]:
    """Return the paths or URLs of the tars that are meant."""
    if text.lower().endswith(PACKED):
        raise DafuseError(
            f"{text} is compressed: unpack it to a plain .tar, which is read in parts"
        )
    found = []
    for one in _spelled_out(text):
        if not re.search(r"[*?\[]", one) or Path(one).exists():
            found.append(one)
        elif is_url(one):
            found += matching(one)
        else:
            found += sorted(glob.glob(one))
    if len(found) == 1 and not names_tars(found[0]):
        found = tars_in(found[0])
    missing = [one for one in found if not is_url(one) and not Path(one).is_file()]
    if missing or not found:
        raise DafuseError(f"there is no tar {missing[0] if missing else text}: check the path")
    return found


def holds_tars(folder: Path) -> bool:
    """Tell whether there are tars in a folder, and no folders that may be of classes."""
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return any(path.suffix.lower() == SUFFIX for path in paths) and not any(
        path.is_dir() for path in paths
    )


def tars_in(folder: str) -> list[str]:
    """Return the tars that lie directly in a folder."""
    if is_url(folder):
        names = files_below(folder)
        depth = folder.rstrip("/").count("/") + 1
        return [one for one in names if one.endswith(SUFFIX) and one.count("/") == depth]
    files = (one for one in Path(folder).iterdir() if not one.name.startswith("."))
    return sorted(str(one) for one in files if one.suffix.lower() == SUFFIX and one.is_file())


def _spelled_out(text: str) -> list[str]:
    """Return what braces stand for: {000..012} are numbers, {a,b} are words."""
    match = BRACES.search(text)
    if match is None or Path(text).exists():
        return [text]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    words = match[1].split(",")
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if last - first >= MOST_TARS:
            raise DafuseError(f"{text} stands for more than {MOST_TARS:,} tars")
        words = [f"{number:0{len(numbers[1])}d}" for number in range(first, last + 1)]
    found = []
    for word in words:
        found += _spelled_out(text[: match.start()] + word + text[match.end() :])
        if len(found) > MOST_TARS:
            raise DafuseError(f"{text} stands for more than {MOST_TARS:,} tars")
    return found


def _of_part(tars: list[str], part: Part) -> list[str]:
    by_part: dict[str, list[str]] = {}
    for tar in tars:
        name = PurePosixPath(tar).name.lower()
        which = next((one for one in ("train", *TEST_FOLDERS) if name.startswith(one)), "")
        by_part.setdefault(which, []).append(tar)
    tests = next((by_part[one] for one in TEST_FOLDERS if one in by_part), None)
    if "train" not in by_part or tests is None:
        return tars
    return by_part["train"] if part == "train" else tests


@dataclass
class _Index:
    """The contents of a tar, by the names of samples: all before the first dot of a file's name."""

    tar: str
    images: dict[str, StoredImage] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)  # sample, suffix -> text
    skipped: list[Skipped] = field(default_factory=list)

    def labelled(self, names: list[str]) -> Iterator[tuple[StoredImage, str]]:
        """Yield the images with the names of their classes."""
        for sample, image in self.images.items():
            texts = self.labels.get(sample, {})
            text = next((texts[suffix] for suffix in LABELS if texts.get(suffix)), None)
            if text is None and not self.labels:
                text = PurePosixPath(image.member).parent.name
            if not text:
                raise DafuseError(
                    f"{self.tar} has no label of {image.member}: put {sample}.cls beside it, with "
                    "the name or the number of its class"
                )
            yield image, self._named(text, names, image)

    def _named(self, text: str, names: list[str], image: StoredImage) -> str:
        if not names or not text.isdecimal():
            return text
        if int(text) >= len(names):
            raise DafuseError(
                f"{image} has the label {text}, and there are {len(names)} names of classes, "
                "counted from 0: complete them"
            )
        return names[int(text)]


def _index(tar: str) -> _Index:
    found = _Index(tar)
    with _opened(tar) as archive:
        for member in _members(archive):
            path = PurePosixPath(member.name)
            if member.isdir() or path.name.startswith("."):
                continue
            stem, _, rest = path.name.partition(".")
            sample, suffix = str(path.with_name(stem)), f".{rest}".lower()
            where = f"{tar}: {member.name}"
            if not member.isreg() or member.sparse is not None:
                found.skipped.append(Skipped(where, "a link or the like, not a file"))
            elif suffix in LABELS and path.name not in CLASSES:
                text = _label(archive, member, where)
                found.labels.setdefault(sample, {})[suffix] = text
            elif is_image(path.name) and sample in found.images:
                found.skipped.append(Skipped(where, "a second image of one label"))
            elif is_image(path.name):
                place = member.offset_data, member.size
                found.images[sample] = StoredImage(tar, member.name, *place)
    return found


@contextmanager
def _opened(tar: str) -> Iterator[tarfile.TarFile]:
    """Open a tar, and say in a sentence whatever is wrong with it."""
    try:
        with read_through(tar) if is_url(tar) else open(tar, "rb") as file:
            bounded: Any = _Bounded(file)
            with tarfile.open(fileobj=bounded, mode="r:") as archive:
                yield archive
    except FileNotFoundError:
        raise DafuseError(f"there is no tar {tar}: check its name") from None
    except PermissionError:
        raise DafuseError(f"{tar} cannot be read: permission denied") from None
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DafuseError(f"{tar} is damaged, or no tar: {reason}") from None


class _Bounded:
    """A file of which no more is read at once than a header or a label takes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LONGEST:
            raise ValueError(f"a header of {size:,} bytes")
        return self._file.read(size)


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members one after another; a tar that ends within one is damaged."""
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # else it keeps them all
        yield member
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)  # tarfile takes a damaged header for the end
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"no header at byte {archive.offset:,}")


def _label(archive: tarfile.TarFile, member: tarfile.TarInfo, where: str) -> str:
    """Return the label in a small file."""
    if member.size > LONGEST:
        raise DafuseError(f"{where} has {member.size:,} bytes, too many for a label")
    file = archive.extractfile(member)
    content = b"" if file is None else file.read()
    try:
        text = content.decode("utf-8-sig").strip()
        return _of_json(json.loads(text)) if member.name.lower().endswith(".json") else text
    except (ValueError, RecursionError) as error:
        raise DafuseError(f"{where} is no label: {' '.join(str(error).split())}") from None


def _of_json(value: Any) -> str:
    """Return the label that a JSON has; "" if it has none."""
    if isinstance(value, dict):
        value = next((value[key] for key in KEYS if key in value), "")
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value).strip()


def _class_names(tars: Iterable[str]) -> list[str]:
    """Return the names that numbers stand for: of a file beside the first tar; none without one."""
    first = next(iter(tars))
    for name in CLASSES:
        if is_url(first):
            try:
                content = read_whole(f"{first.rpartition('/')[0]}/{name}", MOST_CLASSES)
            except (FileNotFoundError, PermissionError):
                continue
        elif (file := Path(first).with_name(name)).is_file():
            content = file.read_bytes()[:MOST_CLASSES]
        else:
            continue
        try:
            lines = content.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise DafuseError(f"{name} beside {first} is not UTF-8: {error}") from None
        return [line.strip() for line in lines if line.strip()]
    return []
