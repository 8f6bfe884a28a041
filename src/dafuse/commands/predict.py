"""`dafuse predict MODEL IMAGE...`: what images show, with calibrated probabilities."""

import csv
import glob
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dafuse.commands.open_model import AS_USUAL, NetworkOptions, open_model
from dafuse.commands.options import Asked
from dafuse.data.dataset import Skipped, in_few_lines
from dafuse.data.folders import images_below
from dafuse.data.images import UnreadableImage
from dafuse.data.remote import is_url
from dafuse.data.stored import StoredImage
from dafuse.errors import DafuseError
from dafuse.progress import Bar, LineProgress, Progress
from dafuse.wording import shown, shown_json

if TYPE_CHECKING:
    from dafuse.product.predictor import Prediction

    Answers = Iterable[tuple[Path | StoredImage, Prediction | UnreadableImage]]


def predict(
    model: Asked,
    /,
    *images: Annotated[str, Parameter(required=True)],
    top: int = 1,
    threshold: float | None = None,
    unknown: bool = True,
    json: bool = False,
    csv: bool = False,
    network: NetworkOptions = AS_USUAL,
) -> None:
    """Print class names and probabilities of images.

    An image unlike every class is answered unknown. What cannot be read or found is named; the
    others are still answered.

    Args:
        images: files, folders (and all in them), patterns, URLs
        top: how many classes to name
        threshold: familiarity (see --json) below which the answer is unknown; the model's own if
            left out
        unknown: answer unknown for an image unlike every class; else always name a class
        json: print a list of objects
        csv: print a line for each class that is named, with the answer: a class, unknown or
            unreadable
    """
    if top < 1:
        raise DafuseError(f"--top must be at least 1, not {top}")
    if threshold is not None and math.isnan(threshold):
        raise DafuseError("--threshold must be a number, not nan")
    if threshold is not None and not unknown:
        raise DafuseError("either --threshold or --no-unknown, not both")
    if json and csv:
        raise DafuseError("either --json or --csv, not both")
    found, missing, skipped = find_images(images)

    opened = open_model(model, network)
    for text in missing:
        print(shown(f"dafuse: there is no image in {text}"), file=sys.stderr)
    for line in in_few_lines(skipped):
        print(shown(f"dafuse: {line}"), file=sys.stderr)
    unreadable: list[Path | StoredImage] = []
    least = threshold if unknown else -math.inf
    answers = zip(found, opened.answers(found, top, least), strict=True)
    show = _show_json if json else _show_csv if csv else _show_text
    # where answers can be seen to come, they say how far it is
    seen = sys.stdout.isatty() and not json
    with (Progress() if seen else LineProgress()).bar("predict", len(found)) as bar:
        show(_noting_unreadable(answers, unreadable, bar))
    if unreadable or missing:
        sys.exit(1)


def find_images(given: Sequence[str]) -> tuple[list[Path | StoredImage], list[str], list[Skipped]]:
    """Return files as they are given, the images of folders, what patterns match, and URLs.

    Also return which folders and patterns have no image, and which files are no images. A file that
    is named need not exist.
    """
    found: list[Path | StoredImage] = []
    missing: list[str] = []
    skipped: list[Skipped] = []
    for text in given:
        if is_url(text):
            found.append(StoredImage(text))
            continue
        path = Path(text).expanduser()
        paths = [path]
        if not path.exists() and glob.has_magic(text):
            paths = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        before = len(found)
        for one in paths:
            images, others = images_below(one) if one.is_dir() else ([one], [])
            found += images
            skipped += others
        if len(found) == before:
            missing.append(text)
    if not found:
        why = "".join(f"; {line}" for line in in_few_lines(skipped))
        raise DafuseError(f"there is no image in {', '.join(given)}{why}")
    return found, missing, skipped


def _noting_unreadable(
    answers: "Answers", unreadable: list[Path | StoredImage], bar: Bar
) -> "Answers":
    for path, answer in answers:
        bar.advance()
        if isinstance(answer, UnreadableImage):
            print(shown(f"dafuse: {path} cannot be read: {answer}"), file=sys.stderr)
            unreadable.append(path)
        yield path, answer


def _show_text(answers: "Answers") -> None:
    for path, answer in answers:
        if not isinstance(answer, UnreadableImage):
            named = ", ".join(f"{name} {share:.1%}" for name, share in answer.top)
            said = f"unknown (closest: {named})" if answer.unknown else named
            print(shown(f"{path}: {said}"))


def _show_json(answers: "Answers") -> None:
    said: list[dict[str, Any]] = []
    for path, answer in answers:
        if isinstance(answer, UnreadableImage):
            said.append({"file": str(path), "error": str(answer)})
            continue
        top = [{"name": name, "probability": share} for name, share in answer.top]
        said.append(
            {
                "file": str(path),
                "name": answer.name,
                "probability": answer.probability,
                "unknown": answer.unknown,
                "familiarity": answer.familiarity,
                "top": top,
            }
        )
    print(shown_json(said))


def _show_csv(answers: "Answers") -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["file", "answer", "rank", "class", "probability", "unknown"])
    for path, answer in answers:
        if isinstance(answer, UnreadableImage):
            table.writerow([shown(path), "unreadable", "", "", "", ""])
            continue
        file, unknown = shown(path), str(answer.unknown).lower()
        for rank, (name, share) in enumerate(answer.top, start=1):
            table.writerow([file, shown(answer.name), rank, shown(name), f"{share:.6f}", unknown])
