"""Image files below a folder. Each real folder is read once, however many links lead to it."""

import os
from pathlib import Path
from typing import NoReturn

from dafuse.data.formats import is_image, why_not_read
from dafuse.data.listed import Skipped
from dafuse.errors import DafuseError

MADE_BY_THE_SYSTEM = ("thumbs.db", "desktop.ini")  # hidden, where they come from
HIDDEN = "a folder whose name begins with a dot is not looked at"
BACK = "a link to a folder that it lies in is not followed"
AGAIN = "a link to a folder that is read where it lies is not followed"
AWAY = "a link out of the class folder is not followed; put the images themselves there"
NOWHERE = "a link that leads nowhere"
TWICE = "the same folder as"
Met = dict[Path, Path]  # each folder that was read, without links: the path it was read by


def images_below(
    top: Path, met: Met | None = None, away: bool = True
) -> tuple[list[Path], list[Skipped]]:
    """The images in a folder and all folders in it, and what is left out: both in ASCII order.

    Hidden files are not looked at. Links to files are as good as files.

    Args:
        top: the folder
        met: folders that were read before, and are not read again
        away: whether links to folders elsewhere are followed
    """
    met = {} if met is None else met
    real_top = real(top)
    met.setdefault(real_top, top)
    images: list[Path] = []
    others: list[Skipped] = []
    for here, below, names in os.walk(top, onerror=unreadable, followlinks=True):
        entered = []
        for path in (Path(here, name) for name in sorted(below)):
            why = why_not_entered(path, real_top, met, away)
            if why is None:
                entered.append(path.name)
            elif why != AGAIN:
                others.append(Skipped(str(path), why))
        below[:] = entered
        for path in (Path(here, name) for name in names):
            if is_image(path.name):
                images.append(path)
            elif not path.name.startswith(".") and path.name.lower() not in MADE_BY_THE_SYSTEM:
                others.append(Skipped(str(path), why_not_read(path.name)))
    others.sort(key=lambda one: Path(one.name).as_posix())
    return sorted(images, key=Path.as_posix), others


def why_not_entered(path: Path, real_top: Path, met: Met, away: bool) -> str | None:
    """Why a folder below ``real_top`` is left out; None for one that is read now, and noted."""
    if path.name.startswith("."):
        return HIDDEN
    target = real(path)
    if path.is_symlink():
        if real_top.is_relative_to(target):
            return BACK
        if target.is_relative_to(real_top):
            if not any(part.startswith(".") for part in target.relative_to(real_top).parts):
                return AGAIN
        elif not away:
            return AWAY
    if target in met:
        return f"{TWICE} {met[target]}"
    met[target] = path
    return None


def is_link(one: Skipped) -> bool:
    """Whether it was left out because of a link."""
    return one.why in (BACK, AGAIN, AWAY, NOWHERE) or one.why.startswith(TWICE)


def leads_nowhere(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def real(path: Path) -> Path:
    """The path without links."""
    return Path(os.path.realpath(path))


def unreadable(error: OSError) -> NoReturn:
    raise DafuseError(f"cannot read the folder {error.filename}: {error.strerror}")
