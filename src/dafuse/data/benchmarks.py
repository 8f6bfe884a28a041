"""The data sets of the field's tables: CIFAR-100, ImageNet-R, -A, ObjectNet; Tiny-ImageNet too.

They lie under one data root: the argument, else $DAFUSE_DATA, else ~/.cache/dafuse/data.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dafuse.data.connectivity import reachable
from dafuse.data.dataset import Dataset, ImageSet
from dafuse.data.folders import folder
from dafuse.errors import DafuseError
from dafuse.wording import first_line

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"


@dataclass(frozen=True)
class PublicSplit:
    """An 80/20 split that the RevisitingCIL authors published; 200 classes each."""

    train: int
    test: int
    archive: str
    md5: str


PUBLIC_SPLITS = {
    "imagenet-r": PublicSplit(24000, 6000, "imagenet-r.zip", "730aa3fb9c7d2ec0b6381c6b23040681"),
    "imagenet-a": PublicSplit(5981, 1519, "ina.zip", "7f4aaf0b1532b7a0bd670822c152d3c5"),
    "objectnet": PublicSplit(26509, 6628, "objnet.tgz", "63ff7443a47bd682016a8ec59b8cc1bc"),
}


def data_root(root: str | Path | None) -> Path:
    """Return the folder of the benchmarks."""
    return Path(root or os.environ.get("DAFUSE_DATA") or "~/.cache/dafuse/data").expanduser()


def missing(name: str, root: str | Path | None = None) -> str | None:
    """Say what to do about a missing benchmark; None if it is there. Images are not counted."""
    base = data_root(root)
    if _has_tree(base / name) or (name == "cifar100" and _has_cifar_files(base)):
        return None
    if name == "cifar100":
        return (
            f"CIFAR-100 is not in {base}: unpack cifar-100-python.tar.gz ({CIFAR_URL}) there, or "
            f"make the tree {base / name}/{{train,test}}/<class>/ (or set root or $DAFUSE_DATA)"
        )
    layout = f"{name} is not in {base}: expected {base / name}/{{train,test}}/<class>/"
    if name in PUBLIC_SPLITS:
        split = PUBLIC_SPLITS[name]
        how = (
            f"from {split.archive} (md5 {split.md5}), the public 80/20 split of the RevisitingCIL "
            "authors (github.com/zhoudw-zdw/RevisitingCIL)"
        )
    else:
        how = "from tiny-imagenet-200.zip of cs231n.stanford.edu, its val images sorted into test/"
    return f"{layout}, {how}; nothing is downloaded for you (or set root or $DAFUSE_DATA)"


def cifar100(root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """CIFAR-100, downloaded if it is not there: 100 classes, 50,000 and 10,000 images of 32 px.

    Args:
        root: folder of cifar-100-python/ or cifar100/; else $DAFUSE_DATA or ~/.cache/dafuse/data.
        check_counts: refuse a copy that has not 500 training and 100 test images of each class.
    """
    base = data_root(root)
    if _has_cifar_files(base) or not _has_tree(base / "cifar100"):
        dataset = _from_torchvision(base)
    else:
        dataset = _named(folder(base / "cifar100"), "cifar100")
    if check_counts and len(dataset.classes) != 100:
        raise _wrong_counts("cifar100", f"{len(dataset.classes)} classes", "100", base)
    for part, images, count in (("training", dataset.train, 500), ("test", dataset.test, 100)):
        counts = np.bincount(images.labels, minlength=100)
        if check_counts and (wrong := np.flatnonzero(counts != count)).size:
            seen = f"{counts[wrong[0]]} {part} images of {dataset.classes[wrong[0]]!r}"
            raise _wrong_counts("cifar100", seen, f"{count} of each class", base)
    return dataset


def imagenet_r(root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """ImageNet-R in its public 80/20 split: 200 classes, 24,000 and 6,000 images.

    Args:
        root: folder of imagenet-r/{train,test}; else $DAFUSE_DATA or ~/.cache/dafuse/data.
        check_counts: refuse a copy with other numbers of classes or images.
    """
    return _public_split("imagenet-r", root, check_counts)


def imagenet_a(root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """ImageNet-A in its public 80/20 split: 200 classes, 5,981 and 1,519 images.

    Args:
        root: folder of imagenet-a/{train,test}; else $DAFUSE_DATA or ~/.cache/dafuse/data.
        check_counts: refuse a copy with other numbers of classes or images.
    """
    return _public_split("imagenet-a", root, check_counts)


def objectnet(root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """ObjectNet in its public 80/20 split: 200 classes, 26,509 and 6,628 images.

    Args:
        root: folder of objectnet/{train,test}; else $DAFUSE_DATA or ~/.cache/dafuse/data.
        check_counts: refuse a copy with other numbers of classes or images.
    """
    return _public_split("objectnet", root, check_counts)


def tiny_imagenet(root: str | Path | None = None) -> Dataset:
    """Tiny-ImageNet: 200 classes, images of 64 px.

    Args:
        root: folder of tiny-imagenet/{train,test}; else $DAFUSE_DATA or ~/.cache/dafuse/data.
    """
    dataset = _tree("tiny-imagenet", root)
    if len(dataset.classes) != 200:
        raise _wrong_counts(dataset.name, f"{len(dataset.classes)} classes", "200", data_root(root))
    return dataset


def _public_split(name: str, root: str | Path | None, check_counts: bool) -> Dataset:
    dataset, split = _tree(name, root), PUBLIC_SPLITS[name]
    counts = (len(dataset.classes), len(dataset.train), len(dataset.test))
    if check_counts and counts != (200, split.train, split.test):
        seen = "{} classes, {} training and {} test images".format(*counts)
        expected = f"200, {split.train} and {split.test} of {split.archive} (md5 {split.md5})"
        raise _wrong_counts(name, seen, expected, data_root(root))
    return dataset


def _tree(name: str, root: str | Path | None) -> Dataset:
    if message := missing(name, root):
        raise DafuseError(message)
    return _named(folder(data_root(root) / name), name)


def _named(dataset: Dataset, name: str) -> Dataset:
    return Dataset(name, dataset.classes, dataset.train, dataset.test)


def _wrong_counts(name: str, seen: str, expected: str, base: Path) -> DafuseError:
    unless = (
        "" if name == "tiny-imagenet" else ", or say --data.no-check-counts to take it as it is"
    )
    problem = f"{name} in {base} is not the usual one: it has {seen}, expected {expected}"
    return DafuseError(f"{problem}: unpack it again{unless}")


def _has_tree(top: Path) -> bool:
    return (top / "train").is_dir() and (top / "test").is_dir()


def _has_cifar_files(base: Path) -> bool:
    return all((base / "cifar-100-python" / part).is_file() for part in ("train", "test", "meta"))


def _from_torchvision(base: Path) -> Dataset:
    """CIFAR-100 from its own files (their md5 is checked), downloaded where they are not there."""
    download = not _has_cifar_files(base)
    if download:
        if not reachable(CIFAR_URL):
            raise DafuseError(f"{missing('cifar100', base)}; it cannot be downloaded from here")
        print(f"downloading CIFAR-100 (161 MB) from {CIFAR_URL} to {base}", file=sys.stderr)
    from torchvision.datasets import CIFAR100

    try:
        parts = [CIFAR100(str(base), train=train, download=download) for train in (True, False)]
    except (RuntimeError, OSError, EOFError) as error:
        reason = first_line(error)
        raise DafuseError(
            f"CIFAR-100 in {base / 'cifar-100-python'} cannot be read ({reason}): "
            f"remove that folder and unpack {CIFAR_URL} again"
        ) from error
    train, test = (ImageSet(part.data, np.asarray(part.targets)) for part in parts)
    return Dataset("cifar100", list(parts[0].classes), train, test)
