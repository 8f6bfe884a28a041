"""Every data source by its name, for recipes and the command line."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dafuse.data.arrays import arrays_file
from dafuse.data.benchmarks import (
    cifar100,
    data_root,
    imagenet_a,
    imagenet_r,
    missing,
    objectnet,
    tiny_imagenet,
)
from dafuse.data.dataset import Dataset
from dafuse.data.folders import folder
from dafuse.data.glyphs import glyphs
from dafuse.data.own_data import kind_of
from dafuse.data.tables import table
from dafuse.errors import DafuseError, did_you_mean

DATASETS: dict[str, Callable[..., Dataset]] = {
    "glyphs": glyphs,
    "folder": folder,
    "table": table,
    "arrays": arrays_file,
    "cifar100": cifar100,
    "imagenet-r": imagenet_r,
    "imagenet-a": imagenet_a,
    "objectnet": objectnet,
    "tiny-imagenet": tiny_imagenet,
}
OWN_DATA = {
    "folder": "your class folders: give their folder as root",
    "table": "your table of paths and labels: give it as file",
    "arrays": "your .npz of pixels and labels: give it as file",
}


def open_dataset(name: str, **options: Any) -> Dataset:
    """The data set of that name, or at that path: a folder, a .csv, a .parquet or an .npz."""
    name, implied = resolve(name)
    source, options = DATASETS[name], implied | options
    try:
        inspect.signature(source).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(source).parameters)
        raise DafuseError(f"data set {name!r}: {error}; its options are {known}") from None
    return source(**options)


def with_defaults(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """A registered name and every option of that source: those given, and the others' defaults."""
    name, implied = resolve(name)
    signature = inspect.signature(DATASETS[name]).parameters.values()
    defaults = {p.name: p.default for p in signature if p.default is not p.empty}
    return {"name": name, **defaults, **implied, **options}


def availability(name: str, root: str | Path | None = None) -> tuple[bool, str]:
    """Tell whether the data is there, and say in one line where, or what to do. Reads no images.

    ``root`` is the benchmarks' data root, or the path of one's own data.
    """
    if name == "glyphs":
        return True, "drawn on the spot"
    if name in OWN_DATA:
        if root is not None and not Path(root).expanduser().exists():
            return False, f"there is no {root}: check the path"
        return True, OWN_DATA[name] if root is None else str(root)
    if name not in DATASETS:
        raise _unknown(name)
    message = missing(name, root)
    if message is None:
        return True, f"in {data_root(root)}"
    return False, message + ("; it is downloaded at first use" if name == "cifar100" else "")


def resolve(name: str) -> tuple[str, dict[str, Any]]:
    """A registered name and the options that a path given as a name stands for."""
    if name in DATASETS:
        return name, {}
    kind = kind_of(name)
    if kind not in DATASETS:  # nor are tars or what is at a URL
        raise _unknown(name)
    return kind, {"root" if kind == "folder" else "file": str(Path(name).expanduser())}


def _unknown(name: str) -> DafuseError:
    return DafuseError(
        f"there is no data set {name!r}; the names are {', '.join(DATASETS)}; a path to a folder, "
        f".csv, .parquet or .npz does as well{did_you_mean(name, DATASETS)}"
    )
