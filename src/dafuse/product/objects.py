"""The arrays of a method, as objects of a model's folder and back. No torch here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np

from dafuse.errors import DafuseError
from dafuse.product.folder import ModelFolder
from dafuse.product.version import ClassRecord, Version
from dafuse.taught.contract import (
    CLASS,
    DERIVED,
    PREDICT,
    SHARED,
    WHICH,
    Arrays,
    ReadsRecords,
    Teachable,
    named,
    under,
)

ROWS = "classifier/rows"  # the class weights in models of format 1


def put_arrays(
    folder: ModelFolder, arrays: Arrays, classes: Sequence[ClassRecord]
) -> dict[str, Any]:
    """Write the arrays of a method that knows these classes; return what of a version changes."""
    shared, records = under(SHARED, arrays), under(CLASS, arrays)
    derived, later = under(DERIVED, arrays), list(classes)
    for row, i in enumerate(arrays.get(WHICH, np.arange(len(classes))).tolist()):
        parts = {name: array[row] for name, array in records.items() if CLASS + name != WHICH}
        later[i] = replace(later[i], record=folder.put(parts))
    return {
        "shared": folder.put(shared) if shared else "",
        "predict": folder.put(under(PREDICT, arrays)),
        "classes": later,
        "derived": folder.put(derived) if derived else "",
    }


def read_to_predict(folder: ModelFolder, version: Version, method: Teachable) -> Arrays:
    """Read the arrays that predict, and ``shared/`` only for an encoder that reads it.

    Where undo came back to a version without them, the blank method solves them again.
    """
    if folder.predicts(version):
        if method.encoder_reads_shared:
            return read_predicting(folder, version)
        return _read_weights(folder, version)
    folder.require_still(version)
    load_method(folder, version, method)
    arrays = method.arrays()
    folder.keep_solved(version, under(PREDICT, arrays))
    return arrays


def read_predicting(folder: ModelFolder, version: Version) -> Arrays:
    """Read the arrays named ``shared/`` and ``predict/``; leave records unread."""
    return {**read_shared(folder, version), **_read_weights(folder, version)}


def _read_weights(folder: ModelFolder, version: Version) -> Arrays:
    """Read the arrays named ``predict/``."""
    predict: dict[str, Any] = folder.arrays(version.predict)
    if ROWS in predict:
        weights_CD = predict[ROWS]
        predict = {"weights": weights_CD, "bias": np.zeros(len(weights_CD), np.float32)}
    if len(predict["bias"]) != len(version.classes):
        raise ValueError("there is not one weight vector for each class")
    return named(PREDICT, predict)


def load_method(folder: ModelFolder, version: Version, method: Teachable) -> None:
    """Give a method all that this version has learned."""
    if version.derived:
        reads = cast(ReadsRecords, method)
        reads.read_records(lambda number: folder.arrays(version.classes[number].record))
        arrays = read_beside_records(folder, version)
        if folder.has_totals(version):
            arrays |= named(DERIVED, folder.arrays(version.derived))
    else:
        arrays = read_arrays(folder, version)
    method.load(arrays, version.numbers)


def read_arrays(folder: ModelFolder, version: Version) -> Arrays:
    """Read all arrays of a method; without ``predict/`` where that has to be solved again."""
    records = [folder.arrays(one.record) for one in version.classes]
    stacked = {name: np.stack([one[name] for one in records]) for name in records[0]}
    return {**read_beside_records(folder, version), **named(CLASS, stacked)}


def read_beside_records(folder: ModelFolder, version: Version) -> Arrays:
    """Read all but the records; without ``predict/`` where that has to be solved again."""
    if not version.number:
        return {}
    if folder.predicts(version):
        return read_predicting(folder, version)
    return read_shared(folder, version)


def read_shared(folder: ModelFolder, version: Version) -> Arrays:
    """Read what all classes share, which is all that an encoder needs."""
    return named(SHARED, folder.arrays(version.shared) if version.shared else {})


@contextmanager
def saying_what_is_wrong(folder: ModelFolder, version: Version) -> Iterator[None]:
    """Name the version's file where its objects are damaged or were never written by dafuse."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise
        file = folder.version_file(version.number)
        raise DafuseError(f"{file} is not what dafuse writes: {error!r}") from error
