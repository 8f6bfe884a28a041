"""Tars in the layout of WebDataset, on this machine."""

import io
import json
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dafuse.data import stored, tars
from dafuse.data.images import UnreadableImage, pixels_of
from dafuse.data.own_data import images_to_test, kind_of, lesson_images
from dafuse.data.stored import StoredImage
from dafuse.errors import DafuseError
from helpers.product_models import pictures
from helpers.tar_files import png, samples, write_tar

IMAGE = png(pictures({0: 1})[0][0])


def counts(source: object) -> dict[str, int]:
    dataset = lesson_images(source, None)  # type: ignore[arg-type]
    return dict(Counter(dataset.classes[label] for label in dataset.train.labels))


class TestLabels:
    def test_pixels_and_names_come_from_a_tar(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", samples({0: 3, 1: 2}))
        dataset = lesson_images(tar, None)
        expected, names = pictures({0: 3, 1: 2})
        assert [dataset.classes[label] for label in dataset.train.labels] == names
        for item, pixels in zip(dataset.train.items, expected, strict=True):
            assert np.array_equal(pixels_of(item), pixels)
        assert str(dataset.train.items[0]) == f"{tar}: 00000.png"

    @pytest.mark.parametrize(
        ("suffix", "content"),
        [
            ("cls", b"cat\n"),
            ("txt", b"\xef\xbb\xbfcat"),
            ("json", b'"cat"'),
            ("json", b'{"caption": "a dog", "label": "cat"}'),
            ("json", b'{"class_name": "cat", "cls": 3}'),
        ],
    )
    def test_a_label_may_be_in_several_kinds_of_file(
        self, tmp_path: Path, suffix: str, content: bytes
    ) -> None:
        members = [("x/1." + suffix, content), ("x/1.png", IMAGE)]
        assert counts(write_tar(tmp_path / "a.tar", members)) == {"cat": 1}

    def test_the_class_file_comes_before_the_caption(self, tmp_path: Path) -> None:
        members = [("1.txt", b"a cat on a mat"), ("1.cls", b"cat"), ("1.png", IMAGE)]
        assert counts(write_tar(tmp_path / "a.tar", members)) == {"cat": 1}

    def test_numbers_are_lines_of_a_file_of_names(self, tmp_path: Path) -> None:
        members = [("1.png", IMAGE), ("1.cls", b"1"), ("2.png", IMAGE), ("2.json", b'{"cls": 0}')]
        tar = write_tar(tmp_path / "a.tar", members)
        assert counts(tar) == {"0": 1, "1": 1}
        (tmp_path / "classes.txt").write_text("dog\ncat\n")
        assert counts(tar) == {"cat": 1, "dog": 1}
        (tmp_path / "classes.txt").write_text("dog\n")
        with pytest.raises(DafuseError, match="has the label 1, and there are 1 names"):
            counts(tar)

    def test_without_any_label_folders_name_the_classes(self, tmp_path: Path) -> None:
        members = [("photos/cat/1.png", IMAGE), ("photos/dog/2.png", IMAGE)]
        assert counts(write_tar(tmp_path / "a.tar", members)) == {"cat": 1, "dog": 1}

    def test_a_missing_label_is_refused_by_name(self, tmp_path: Path) -> None:
        members = [("1.png", IMAGE), ("1.cls", b"cat"), ("2.png", IMAGE)]
        with pytest.raises(DafuseError, match=r"a.tar has no label of 2.png: put 2.cls beside it"):
            counts(write_tar(tmp_path / "a.tar", members))

    @pytest.mark.parametrize(("name", "content"), [("1.json", b"{"), ("1.cls", b"\xff\xfe")])
    def test_a_label_that_cannot_be_read_is_refused(
        self, tmp_path: Path, name: str, content: bytes
    ) -> None:
        tar = write_tar(tmp_path / "a.tar", [("1.png", IMAGE), (name, content)])
        with pytest.raises(DafuseError, match=f"{name} is no label"):
            counts(tar)


class TestNames:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for number in range(8, 12):
            write_tar(tmp_path / f"photos-{number:02d}.tar", samples({0: 2}, seed=number))
        return tmp_path

    @pytest.mark.parametrize(
        ("name", "images"),
        [
            ("", 8),
            ("photos-09.tar", 2),
            ("photos-{08..10}.tar", 6),
            ("photos-{08,11}.tar", 4),
            ("photos-*.tar", 8),
            ("photos-1?.tar", 4),
        ],
    )
    def test_tars_are_named_in_several_ways(self, folder: Path, name: str, images: int) -> None:
        assert kind_of(folder / name) == "tars"
        assert counts(folder / name) == {"class 0": images}

    def test_a_folder_of_class_folders_is_one_even_with_a_tar(self, folder: Path) -> None:
        (folder / "cat").mkdir()
        assert kind_of(folder) == "folder"

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("photos-{08..13}.tar", "there is no tar .*photos-12.tar: check the path"),
            ("none-*.tar", r"there is no tar .*none-\*.tar"),
            ("photos-{0..9999999}.tar", "stands for more than 100,000 tars"),
            ("{0..99}{0..99}{0..99}.tar", "stands for more than 100,000 tars"),
            ("photos.tar.gz", "is compressed: unpack it"),
        ],
    )
    def test_names_that_do_not_fit_are_refused(self, folder: Path, name: str, message: str) -> None:
        with pytest.raises(DafuseError, match=message):
            lesson_images(folder / name, None)

    def test_names_may_say_which_part_it_is(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "train-0.tar", samples({0: 3}))
        write_tar(tmp_path / "val-0.tar", samples({0: 2}, seed=1))
        assert counts(tmp_path) == {"class 0": 3}
        assert len(images_to_test(tmp_path).train) == 2


class TestBadTars:
    def test_what_is_no_image_of_the_tar_is_skipped_by_name(self, tmp_path: Path) -> None:
        file = tmp_path / "a.tar"
        write_tar(file, [*samples({0: 2}), ("00000.jpg", IMAGE), (".hidden.png", IMAGE)])
        with tarfile.open(file, "a") as tar:
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
                link = tarfile.TarInfo(f"link{kind.decode()}.png")
                link.type, link.linkname = kind, "/etc/passwd"
                tar.addfile(link)
        dataset = lesson_images(file, None)
        assert len(dataset.train) == 2
        assert Counter(one.why for one in dataset.skipped) == {
            "a link or the like, not a file": 3,
            "a second image of one label": 1,
        }

    def test_a_name_out_of_the_tar_leads_nowhere(self, tmp_path: Path) -> None:
        members = [("../../cat/1.png", IMAGE), ("/dog/2.png", IMAGE)]
        dataset = lesson_images(write_tar(tmp_path / "in" / "a.tar", members), None)
        assert dataset.classes == ["cat", "dog"]
        assert [path.name for path in tmp_path.rglob("*")] == ["in", "a.tar"]

    @pytest.mark.parametrize("part", [0.3, 0.6])
    def test_a_tar_that_was_cut_is_refused(self, tmp_path: Path, part: float) -> None:
        file = write_tar(tmp_path / "a.tar", samples({0: 20}))
        file.write_bytes(file.read_bytes()[: int(part * 40 * 1024) // 512 * 512 + 100])
        with pytest.raises(DafuseError, match=r"a.tar is damaged, or no tar: "):
            lesson_images(file, None)

    def test_a_tar_with_a_broken_header_is_not_taken_for_a_shorter_one(
        self, tmp_path: Path
    ) -> None:
        file = write_tar(tmp_path / "a.tar", samples({0: 20}))
        content = bytearray(file.read_bytes())
        place = content.index(b"00010.cls")
        content[place + 148 : place + 156] = b"\xff" * 8  # its checksum
        file.write_bytes(content)
        with pytest.raises(DafuseError, match=r"a.tar is damaged, or no tar: no header at byte"):
            lesson_images(file, None)

    def test_what_is_no_tar_is_refused(self, tmp_path: Path) -> None:
        for content in (b"nothing", b"x" * 4096, b"\x1f\x8b" + b"x" * 2000):
            (tmp_path / "a.tar").write_bytes(content)
            with pytest.raises(DafuseError, match=r"a.tar is damaged, or no tar"):
                lesson_images(tmp_path / "a.tar", None)

    def test_an_empty_tar_has_no_image(self, tmp_path: Path) -> None:
        with pytest.raises(DafuseError, match="there is no image in"):
            lesson_images(write_tar(tmp_path / "a.tar", []), None)

    def test_no_header_takes_more_memory_than_a_header_needs(self, tmp_path: Path) -> None:
        """A long name of 3 GB, in a file that has holes instead."""
        header = tarfile.TarInfo("././@LongLink")
        header.type, header.size = tarfile.GNUTYPE_LONGNAME, 3 * 2**30
        with open(tmp_path / "a.tar", "wb") as file:
            file.write(header.tobuf(tarfile.GNU_FORMAT))
            file.truncate(4 * 2**30)
        with pytest.raises(DafuseError, match="a header of 3,221,2"):
            lesson_images(tmp_path / "a.tar", None)

    def test_a_label_of_many_bytes_is_refused(self, tmp_path: Path) -> None:
        members = [("1.png", IMAGE), ("1.cls", b"x" * (tars.LONGEST + 1))]
        with pytest.raises(DafuseError, match="too many for a label"):
            lesson_images(write_tar(tmp_path / "a.tar", members), None)

    def test_an_image_of_too_many_bytes_is_named_and_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tar = write_tar(tmp_path / "a.tar", [("1.png", IMAGE), ("1.cls", b"cat")])
        (image,) = lesson_images(tar, None).train.items
        monkeypatch.setattr(stored, "MOST_BYTES", 10)
        with pytest.raises(UnreadableImage, match="more than 10 bytes"):
            pixels_of(image)

    def test_a_tar_that_is_gone_or_shorter_gives_no_image(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "a.tar", samples({0: 1}))
        (image,) = lesson_images(tar, None).train.items
        assert isinstance(image, StoredImage)
        tar.write_bytes(tar.read_bytes()[:600])
        with pytest.raises(UnreadableImage):
            pixels_of(image)
        tar.unlink()
        with pytest.raises(UnreadableImage, match="there is no such file"):
            pixels_of(image)


def test_labels_in_json_may_be_anything(tmp_path: Path) -> None:
    for value in (None, [], {}, True, 1.5, {"label": None}, {"label": {"a": 1}}):
        members = [("1.png", IMAGE), ("1.json", json.dumps(value).encode()), ("2.txt", b"x")]
        with pytest.raises(DafuseError, match=r"has no label of 1\.png"):
            lesson_images(write_tar(tmp_path / "a.tar", members), None)
    deep = b"[" * 60_000
    with pytest.raises(DafuseError, match="is no label"):
        lesson_images(write_tar(tmp_path / "a.tar", [("1.png", IMAGE), ("1.json", deep)]), None)


def test_bytes_of_an_image_are_those_in_the_tar(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", samples({0: 2}))
    for image in lesson_images(tar, None).train.items:
        assert io.BytesIO(image.content()).read(4) == b"\x89PNG"
