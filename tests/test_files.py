"""Atomic writes leave the old file or the new one, never something between, and no litter."""

import errno
import json
import math
import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from filelock import lock_descriptor

from dafuse.errors import DafuseError
from dafuse.files import (
    locked,
    make_folder,
    open_inside,
    read_inside,
    read_json,
    remove_leftovers,
    require_writable,
    write_atomically,
    write_json,
)


def test_writes_text_as_utf8_and_bytes_as_they_are(tmp_path):
    write_atomically(tmp_path / "text", "größer\n")
    write_atomically(str(tmp_path / "bytes"), b"\x00\xff")
    assert (tmp_path / "text").read_bytes() == "größer\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    assert sorted(os.listdir(tmp_path)) == ["bytes", "text"]


def test_replaces_what_was_there(tmp_path):
    for text in ("a longer first version", "second"):
        write_atomically(tmp_path / "file", text)
    assert (tmp_path / "file").read_text() == "second"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failure_keeps_the_old_file_and_removes_the_temporary(tmp_path, monkeypatch, step):
    write_atomically(tmp_path / "file", "old")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(DafuseError, match=r"cannot write .*file: No space left on device"):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_write_left_goes_with_the_next_and_the_living_are_let_be(tmp_path):
    left, other = tmp_path / ".file.0123abcd.tmp", tmp_path / ".file.of mine.tmp"
    for file in (left, other):
        file.write_bytes(b"half")
    with left.open("rb") as held:
        assert lock_descriptor(held.fileno())  # as the process that writes it does
        write_atomically(tmp_path / "file", "new")
        assert left.exists()
    write_atomically(tmp_path / "file", "newer")
    assert sorted(os.listdir(tmp_path)) == [other.name, "file"]


def test_a_file_that_is_being_written_is_not_taken_for_abandoned(tmp_path, monkeypatch):
    rename = os.replace

    def replace(source, target):
        monkeypatch.setattr(os, "replace", rename)
        write_atomically(target, "by another meanwhile")
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write_atomically(tmp_path / "file", "the last")
    assert (tmp_path / "file").read_text() == "the last"
    assert os.listdir(tmp_path) == ["file"]


def test_interrupt_passes_through_and_leaves_no_temporary(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == []


def test_order_of_steps_is_data_then_rename_then_folder(tmp_path, monkeypatch):
    steps = []
    sync, rename = os.fsync, os.replace

    def fsync(descriptor):
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "data")
        sync(descriptor)

    def replace(source, target):
        assert os.path.dirname(source) == os.path.dirname(target)
        steps.append("rename")
        rename(source, target)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to tell files from folders")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomically(tmp_path / "file", "new")
    assert steps == ["data", "rename", "folder"]


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(DafuseError, match=r"cannot write .*nowhere"):
        write_atomically(tmp_path / "nowhere" / "file", "text")


@pytest.mark.skipif(os.name != "posix", reason="permissions and links of POSIX")
def test_permissions_are_the_usual_ones_and_links_stay_links(tmp_path):
    previous = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", "old")
    finally:
        os.umask(previous)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_json_comes_back_unchanged(tmp_path):
    value = {"name": "größer", "values": [1, 0.1, None, True], "inner": {"a": []}}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value
    write_json(tmp_path / "value.json", [math.nan, math.inf])
    back = read_json(tmp_path / "value.json")
    assert math.isnan(back[0])
    assert back[1] == math.inf


def test_what_json_cannot_hold_leaves_the_file_alone(tmp_path):
    write_json(tmp_path / "value.json", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "value.json", {"set": {1, 2}})
    assert read_json(tmp_path / "value.json") == 1
    assert os.listdir(tmp_path) == ["value.json"]


def test_damaged_json_is_named(tmp_path):
    path = tmp_path / "results.json"
    whole = json.dumps({"correct": [[1], [2, 3]]}).encode()
    for damaged in (b"", whole[:-5], b"\xff\xfe" + whole, b"[" * 100_000):
        path.write_bytes(damaged)
        with pytest.raises(DafuseError, match=r"results\.json is not whole JSON"):
            read_json(path)


def test_missing_json_is_named(tmp_path):
    with pytest.raises(DafuseError, match=r"gone\.json does not exist"):
        read_json(tmp_path / "gone.json")
    with pytest.raises(DafuseError, match="cannot read"):
        read_json(tmp_path)


def test_trying_whether_a_file_can_be_written_never_makes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "unlink", lambda path: None)  # as if it were killed before
    require_writable(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_written_is_said_before_and_nothing_is_changed(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("kept")
    require_writable(old)
    require_writable(new)
    assert old.read_text() == "kept"
    assert not new.exists()
    for path in (tmp_path, tmp_path / "no folder" / "new.json"):
        with pytest.raises(DafuseError, match="cannot write"):
            require_writable(path)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A folder of ours, a file beside it, and a folder beside it."""
    folder = tmp_path / "ours"
    for made in (folder, tmp_path / "beside"):
        made.mkdir()
    (tmp_path / "letter").write_text("whole")
    (tmp_path / "beside" / "letter").write_text("whole")
    (tmp_path / "beside" / ".letter.12345678.tmp").write_text("whole")
    return folder


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
@pytest.mark.parametrize("place", ["file", "folder/letter"])
def test_nothing_is_done_through_a_link_inside_a_folder_of_ours(ours: Path, place: str) -> None:
    (ours / "file").symlink_to("../letter")
    (ours / "folder").symlink_to("../beside", target_is_directory=True)
    for attempt in (
        lambda: write_atomically(ours / place, "new", ours),
        lambda: write_json(ours / place, "new", ours),
        lambda: read_json(ours / place, ours),
        lambda: read_inside(ours / place, ours),
        lambda: open_inside(ours / place, ours, "a"),
        lambda: make_folder(ours / place, ours),
    ):
        link = place.partition("/")[0]
        with pytest.raises(DafuseError, match=rf"ours/{link} is a link, and none is followed"):
            attempt()
    remove_leftovers(ours)
    for whole in ("letter", "beside/letter", "beside/.letter.12345678.tmp"):
        assert (ours.parent / whole).read_text() == "whole"


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
def test_a_lock_empties_no_file(ours: Path) -> None:
    (ours / ".lock").symlink_to("../letter")
    with pytest.raises(DafuseError, match=r"ours/\.lock is a link"), held(ours):
        pass
    (ours / ".lock").unlink()
    os.link(ours.parent / "letter", ours / ".lock")
    with held(ours):
        pass
    assert (ours.parent / "letter").read_text() == "whole"


def held(folder: Path) -> AbstractContextManager[None]:
    return locked(folder / ".lock", lambda: None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_a_pipe_is_not_waited_for(ours: Path) -> None:
    os.mkfifo(ours / "pipe")
    with pytest.raises(DafuseError, match=r"cannot read .*pipe: It is not a file"):
        read_json(ours / "pipe", ours)
    os.mkfifo(ours / ".lock")
    said = r"ours cannot be changed: .*ours/\.lock, .* is no file \(a pipe or a device\): delete it"
    with pytest.raises(DafuseError, match=said), held(ours):
        pass


def test_a_folder_in_place_of_the_lock_is_named(ours: Path) -> None:
    (ours / ".lock").mkdir()
    said = r"ours cannot be changed: .*\.lock, .* is a folder: delete it"
    with pytest.raises(DafuseError, match=said), held(ours):
        pass


def test_numbers_without_end_are_damage(tmp_path: Path) -> None:
    (tmp_path / "long.json").write_text("1" * 100_000)
    with pytest.raises(DafuseError, match=r"long\.json is not whole JSON"):
        read_json(tmp_path / "long.json")


def test_a_read_only_disk_is_called_so(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with (
        pytest.raises(DafuseError, match="ours cannot be changed: the disk is read-only"),
        held(ours),
    ):
        pass


def test_a_disk_without_locks_is_not_taken_for_a_busy_one(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def refuse(descriptor: int, **options: object) -> bool:
        seen.append(descriptor)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("filelock.lock_descriptor", refuse)
    said = "ours cannot be changed: No locks available"
    with pytest.raises(DafuseError, match=said) as raised, locked(ours / ".lock", pytest.fail):
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(seen[0])  # it is closed already, while the error holds on to its frames
    del raised
    write_atomically(ours / "file", "new", ours)
    assert (ours / "file").read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    """A person may name /dev/null as an output."""
    os.mkfifo(tmp_path / "pipe")
    for attempt in (require_writable, lambda path: write_atomically(path, "new")):
        with pytest.raises(DafuseError, match=r"cannot write .*pipe: it is no file"):
            attempt(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_writable_is_what_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which no file can be made is found out, though the file could be written."""
    (tmp_path / "old.json").write_text("kept")

    def refuse(*args: object, **options: object) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(DafuseError, match=r"cannot write .*old\.json: Permission denied"):
        require_writable(tmp_path / "old.json")
