"""Images at URLs: by a web server, and by a store with the interface of S3."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dafuse.data import remote
from dafuse.data.images import UnreadableImage, pixels_of
from dafuse.data.own_data import images_to_test, lesson_images
from dafuse.data.stored import StoredImage
from dafuse.errors import DafuseError
from helpers.file_server import FileServer, serving
from helpers.product_models import pictures, write_folders
from helpers.tar_files import samples, write_tar


def counts(source: str) -> dict[str, int]:
    dataset = lesson_images(source, None)
    return dict(Counter(dataset.classes[label] for label in dataset.train.labels))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    with serving(tmp_path / "web") as started:
        yield started


class TestByWeb:
    def test_a_tar_is_read_in_parts(self, server: FileServer) -> None:
        write_tar(server.root / "a.tar", samples({0: 3, 1: 2}))
        dataset = lesson_images(f"{server.url}/a.tar", None)
        expected, names = pictures({0: 3, 1: 2})
        assert [dataset.classes[label] for label in dataset.train.labels] == names
        before = len(server.requests)
        for item, pixels in zip(dataset.train.items, expected, strict=True):
            assert np.array_equal(pixels_of(item), pixels)
        asked = server.requests[before:]
        assert len(asked) == 5
        assert all("bytes=" in request for request in asked)

    def test_names_of_classes_lie_beside_tars(self, server: FileServer) -> None:
        for number in range(3):
            members = [
                (name, str(number).encode() if name.endswith("cls") else content)
                for name, content in samples({0: 2}, seed=number)
            ]
            write_tar(server.root / f"a-{number}.tar", members)
        assert counts(server.url + "/a-{0..2}.tar") == {"0": 2, "1": 2, "2": 2}
        (server.root / "classes.txt").write_text("zero\none\ntwo\n")
        assert counts(server.url + "/a-{0..2}.tar") == {"zero": 2, "one": 2, "two": 2}

    def test_a_server_of_whole_files_gives_no_tars_but_images(self, server: FileServer) -> None:
        server.gives_parts = False
        write_tar(server.root / "a.tar", samples({0: 2}))
        with pytest.raises(DafuseError, match="sends whole files only, and a tar is read in parts"):
            lesson_images(f"{server.url}/a.tar", None)
        write_folders(server.root, {0: 2, 1: 1})
        rows = ["path,label", "class 0/000.png,a", "class 0/001.png,a", "class 1/002.png,b"]
        (server.root / "list.csv").write_text("\n".join(rows))
        assert counts(f"{server.url}/list.csv") == {"a": 2, "b": 1}

    def test_a_table_here_may_name_images_there(self, server: FileServer, tmp_path: Path) -> None:
        write_folders(server.root, {0: 2})
        here = write_folders(tmp_path / "here", {1: 1})
        (here / "list.csv").write_text(
            f"path,label\n{server.url}/class%200/000.png,a\nclass 1/000.png,b\n"
            f"{server.url}/class%200/none.png,b\n"
        )
        dataset = lesson_images(here / "list.csv", None)
        kinds = [type(item) for item in dataset.train.items]
        assert kinds[0] is kinds[2] is StoredImage
        assert np.array_equal(pixels_of(dataset.train.items[0]), pictures({0: 1})[0][0])
        with pytest.raises(UnreadableImage, match="there is no such file"):
            pixels_of(dataset.train.items[2])
        assert len(images_to_test(here / "list.csv").train) == 3

    def test_a_table_there_is_refused_by_its_url(self, server: FileServer) -> None:
        server.root.mkdir(parents=True)
        (server.root / "list.csv").write_text("file,label\na.png,a\n")
        with pytest.raises(DafuseError, match=f"{server.url}/list.csv has no column 'path'"):
            lesson_images(f"{server.url}/list.csv", None)
        with pytest.raises(DafuseError, match=r"there is no table .*none\.csv"):
            lesson_images(f"{server.url}/none.csv", None)

    def test_what_is_missing_is_said(self, server: FileServer) -> None:
        with pytest.raises(DafuseError, match=r"there is no tar .*none\.tar: check its name"):
            lesson_images(f"{server.url}/none.tar", None)
        for what in ("/photos", "/a-*.tar"):
            with pytest.raises(DafuseError, match="list"):
                lesson_images(server.url + what, None)

    def test_a_lost_connection_is_no_reason_to_skip_an_image(self, server: FileServer) -> None:
        write_tar(server.root / "a.tar", samples({0: 3}))
        dataset = lesson_images(f"{server.url}/a.tar", None)
        server.broken_after = 0
        with pytest.raises(DafuseError, match=r"the connection to .*a\.tar was lost, or there is"):
            pixels_of(dataset.train.items[1])

    def test_where_nobody_answers_one_line_says_so(self) -> None:
        with pytest.raises(DafuseError, match=r"to http://127.0.0.1:9/a.tar was lost"):
            lesson_images("http://127.0.0.1:9/a.tar", None)

    def test_a_tar_that_is_another_now_is_noticed(self, server: FileServer) -> None:
        write_tar(server.root / "a.tar", samples({0: 3}))
        dataset = lesson_images(f"{server.url}/a.tar", None)
        server.gives_parts = False  # more than was asked for
        with pytest.raises(DafuseError, match="was changed, or its server sends something else"):
            pixels_of(dataset.train.items[0])

    def test_a_damaged_tar_is_no_lost_connection(self, server: FileServer) -> None:
        tar = write_tar(server.root / "a.tar", samples({0: 3}))
        tar.write_bytes(tar.read_bytes()[:1300])
        with pytest.raises(DafuseError, match=r"a\.tar is damaged, or no tar"):
            lesson_images(f"{server.url}/a.tar", None)

    def test_no_more_is_read_than_an_image_may_have(
        self, server: FileServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dafuse.data.stored.MOST_BYTES", 1000)
        server.root.mkdir(parents=True)
        (server.root / "a.png").write_bytes(b"x" * 3000)
        with pytest.raises(UnreadableImage, match="more than 1,000 bytes; save it smaller"):
            pixels_of(StoredImage(f"{server.url}/a.png"))


class TestByS3:
    @pytest.fixture(autouse=True)
    def _bucket(self, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        pytest.importorskip("s3fs")
        for name, value in {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        yield
        remote.file_system.cache_clear()
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()

    def test_class_folders_are_a_source(self, server: FileServer) -> None:
        write_folders(server.root / "bucket" / "photos", {0: 3, 1: 2})
        (server.root / "bucket" / "photos" / "notes.txt").write_text("none")
        dataset = lesson_images("s3://bucket/photos", None)
        expected, names = pictures({0: 3, 1: 2})
        assert [dataset.classes[label] for label in dataset.train.labels] == names
        assert np.array_equal(pixels_of(dataset.train.items[4]), expected[4])
        assert [one.name for one in dataset.skipped] == ["s3://bucket/photos/notes.txt"]

    def test_a_folder_may_come_split(self, server: FileServer) -> None:
        write_folders(server.root / "bucket" / "photos" / "train", {0: 3, 1: 2})
        write_folders(server.root / "bucket" / "photos" / "test", {0: 1})
        assert counts("s3://bucket/photos/") == {"class 0": 3, "class 1": 2}
        assert len(images_to_test("s3://bucket/photos").train) == 1

    @pytest.mark.parametrize("name", ["tars", "tars/a-*.tar", "tars/a-{0..1}.tar"])
    def test_tars_are_a_source(self, server: FileServer, name: str) -> None:
        for number in range(2):
            tar = server.root / "bucket" / "tars" / f"a-{number}.tar"
            write_tar(tar, samples({0: 2}, seed=number))
        dataset = lesson_images(f"s3://bucket/{name}", None)
        assert len(dataset.train) == 4
        pixels = [pixels_of(item) for item in dataset.train.items]
        assert np.array_equal(pixels[2], pictures({0: 2}, seed=1)[0][0])

    def test_a_table_and_what_it_names(self, server: FileServer) -> None:
        top = write_folders(server.root / "bucket" / "photos", {0: 2})
        (top / "list.csv").write_text("path,label\nclass 0/000.png,a\n")
        assert counts("s3://bucket/photos/list.csv") == {"a": 1}

    def test_what_is_missing_is_said(self, server: FileServer) -> None:
        (server.root / "bucket").mkdir(parents=True)
        with pytest.raises(DafuseError, match="there is no image in class folders of s3://bucket"):
            lesson_images("s3://bucket/none", None)
        with pytest.raises(DafuseError, match=r"there is no tar s3://bucket/none\.tar"):
            lesson_images("s3://bucket/none.tar", None)

    @pytest.mark.parametrize("name", ["", "a.tar", "a-{0..3}.tar", "list.csv"])
    def test_missing_keys_are_no_lost_connection(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        with pytest.raises(DafuseError, match=r"no keys were found .* AWS_ACCESS_KEY_ID") as caught:
            lesson_images(f"s3://bucket/{name}", None)
        assert not isinstance(caught.value, remote.ConnectionLost)


@pytest.mark.parametrize(
    "url", ["ftp://host/a.tar", "file:///etc/passwd", "zip://a::http://host/b.tar", "xx://y"]
)
def test_other_places_are_refused(url: str) -> None:
    with pytest.raises(DafuseError, match=f"^{url}: images are read from https://, http://, "):
        lesson_images(url, None)


@pytest.mark.parametrize(
    ("missing", "url", "install"),
    [
        ("fsspec", "https://host/a.tar", r"pip install 'dafuse\[remote\]'"),
        ("aiohttp", "https://host/a.tar", r"pip install 'dafuse\[remote\]'"),
        ("gcsfs", "gs://bucket/a.tar", r"pip install 'fsspec\[gs\]'"),
    ],
)
def test_a_missing_package_is_named(
    missing: str, url: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.file_system.cache_clear()
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(DafuseError, match=install):
        lesson_images(url, None)
    remote.file_system.cache_clear()
