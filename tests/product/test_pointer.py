"""Damage to model.json is never taken for what it says; damage to older versions is said."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dafuse.errors import DafuseError
from dafuse.files import read_json, write_json
from dafuse.product.folder import ModelFolder
from dafuse.sealed import SEAL
from helpers.product_models import taught


def test_no_changed_bit_of_the_pointer_is_believed(tmp_path: Path, small_network: None) -> None:
    """A higher number of the oldest version would delete those before it, an undo other things."""
    folder = taught(tmp_path / "model", {0: 3, 1: 3}, {2: 3}, method="lift").folder
    file = folder.pointer_file
    data, said = file.read_bytes(), (folder.current(), folder.oldest())
    for place in range(len(data)):
        for bit in range(8):
            file.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            with suppress(DafuseError):
                assert (folder.current(), folder.oldest()) == said, (place, bit)


def test_a_pointer_of_an_older_dafuse_is_read(tmp_path: Path, small_network: None) -> None:
    folder = taught(tmp_path / "model", {0: 3, 1: 3}, method="lift").folder
    content = read_json(folder.pointer_file)
    del content[SEAL]
    write_json(folder.pointer_file, content)
    assert ModelFolder(folder.path).current() == folder.current()


@pytest.mark.parametrize("in_its_place", [Path.exists, os.mkfifo, Path.mkdir])
def test_the_ledger_says_that_an_older_version_lacks_an_object(
    tmp_path: Path, small_network: None, in_its_place: Callable[[Path], None]
) -> None:
    model = taught(tmp_path / "model", {0: 3, 1: 3}, {0: 3}, method="lift")
    older, last = model.folder.history()
    assert not model.ledger().damage
    file = model.folder.object_file(sorted(older.lasting - last.objects)[0])
    file.unlink()
    in_its_place(file)
    assert f"But: {file} is missing: restore it" in "\n".join(model.ledger().lines())
