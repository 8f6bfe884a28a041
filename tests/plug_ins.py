"""Shared by tests of images that need a plug-in: such a file, and something that reads it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from dafuse.data.formats import load_plugins, readable_suffixes

HEIC = b"\0\0\0\x18ftypheic" + bytes(20)
PLUGIN = """
from PIL import Image
def register_heif_opener():
    def opened(file, name):
        image = Image.new("RGB", (3, 2), (0, 0, 255))
        image.format = "HEIF"
        return image
    Image.register_open("HEIF", opened, lambda start: start[4:12] == b"ftypheic")
"""


@pytest.fixture
def heif_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Something that does for Pillow what pillow-heif does, if only in one colour."""
    (tmp_path / "plug-ins").mkdir()
    (tmp_path / "plug-ins" / "pillow_heif.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path / "plug-ins"))
    _forget_plugins()
    yield
    monkeypatch.undo()
    sys.modules.pop("pillow_heif", None)
    _forget_plugins()
    Image.OPEN.pop("HEIF", None)
    Image.ID[:] = [name for name in Image.ID if name != "HEIF"]


def _forget_plugins() -> None:
    load_plugins.cache_clear()
    readable_suffixes.cache_clear()
