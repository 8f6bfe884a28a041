"""Images that sources give a lesson and an evaluation, and those they leave out by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from dafuse.data.dataset import Dataset, Skipped, in_few_lines
from dafuse.data.folders import HIDDEN, folder
from dafuse.data.formats import (
    PLUGINS,
    is_image,
    looks_like_an_image,
    readable_suffixes,
    why_not_read,
    why_unknown,
)
from dafuse.data.images import UnreadableImage, read_image
from dafuse.data.own_data import images_to_test, kind_of, lesson_images, part_of
from dafuse.data.tables import table
from dafuse.errors import DafuseError
from helpers.image_plug_ins import HEIC
from helpers.processes import HEAVY, clean_environment, dafuse_without
from helpers.product_models import create, write_folders


def fill(root: Path, *names: str, data: bytes = b"x") -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def image(path: Path, level: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (level, 0, 0)).save(path)
    return path


# folders


def test_everything_beside_the_images_is_named(tmp_path: Path) -> None:
    image(tmp_path / "cat" / "1.jpg")
    fill(tmp_path, "cat/a.heic", "cat/deep/b.HEIC", "cat/c.cr2", "cat/d.svg", "cat/notes.txt")
    fill(tmp_path, "cat/.hidden", "cat/.cache/x.txt", "cat/Thumbs.db", "readme.md", "stray.png")
    (tmp_path / "dog").mkdir()
    found = part_of(tmp_path, "train")
    assert found.names == ["cat"]
    assert [(Path(one.name).name, one.why) for one in found.skipped] == [
        ("stray.png", "lies in no class folder"),
        (".cache", HIDDEN),
        ("a.heic", "HEIC needs a plug-in: pip install pillow-heif"),
        ("c.cr2", ".cr2 files are not read; save them as JPEG or PNG"),
        ("d.svg", ".svg files are not read; save them as JPEG or PNG"),
        ("b.HEIC", "HEIC needs a plug-in: pip install pillow-heif"),
        ("notes.txt", "not an image"),
        ("dog", "no images in this class folder"),
    ]


def test_what_lies_beside_the_parts_is_named(tmp_path: Path) -> None:
    for part in ("train", "Test", "val"):
        image(tmp_path / part / "cat" / "1.jpg")
    image(tmp_path / "zebra" / "1.jpg")
    fill(tmp_path, "stray.png", "readme.md", ".cache/x.jpg")
    for part in ("train", "test"):
        found = part_of(tmp_path, part)  # type: ignore[arg-type]
        assert found.names == ["cat"]
        assert [(Path(one.name).name, one.why) for one in found.skipped] == [
            ("val", "beside train/ and Test/"),
            ("zebra", "beside train/ and Test/"),
            ("stray.png", "beside train/ and Test/"),
            (".cache", HIDDEN),
        ]


def test_many_files_of_one_reason_are_one_line() -> None:
    skipped = [Skipped(f"{number}.txt", "not an image") for number in range(5)]
    skipped.insert(1, Skipped("a.cr2", "not read"))
    assert in_few_lines(skipped) == [
        "skipped 0.txt, 1.txt, 2.txt and 2 more: not an image",
        "skipped a.cr2: not read",
    ]


def test_research_still_refuses_empty_class_folders(tmp_path: Path) -> None:
    fill(tmp_path, "cat/1.jpg", "dog/notes.txt")
    with pytest.raises(DafuseError, match="no images in the class folder 'dog'"):
        folder(tmp_path)


def test_only_where_all_are_empty_is_it_an_error(tmp_path: Path) -> None:
    fill(tmp_path, "cat/1.heic", "dog/notes.txt")
    for part in ("train", "test"):
        with pytest.raises(DafuseError, match="no image in the class folders") as caught:
            part_of(tmp_path, part)  # type: ignore[arg-type]
        assert "pip install pillow-heif" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(DafuseError, match="the path of the images is empty: give one"):
        lesson_images("", None)


def test_a_lesson_reports_what_was_skipped(tmp_path: Path, small_network: None) -> None:
    root = write_folders(tmp_path / "photos", {0: 3, 1: 3})
    fill(root, "class 0/a.heic", "class 1/broken.jpg")
    (root / "class 2").mkdir()
    classifier = create(tmp_path / "model")
    expected = [
        f"{root / 'class 0' / 'a.heic'}: HEIC needs a plug-in: pip install pillow-heif",
        "class 2: no images in this class folder",
        f"{root / 'class 1' / 'broken.jpg'}: not an image that Pillow knows",
    ]
    assert classifier.learn(root).skipped == expected
    assert classifier.evaluate(root).skipped == expected


# formats


def test_kinds_of_images() -> None:
    assert is_image("a.JPG")
    assert is_image("a.webp")
    assert not is_image(".a.jpg")
    for name in ("a.heic", "a.jxl", "a.DNG", "a.psd", "a.jpg"):
        assert looks_like_an_image(name), name
    assert not looks_like_an_image("a.txt")
    assert "pillow-jxl-plugin" in why_not_read("a.jxl")
    assert "pillow-jxl-plugin" in why_unknown(b"\xff\x0a and more", "a.jxl")  # no brand tells it
    assert why_unknown(b"<svg>", "a.svg") == ".svg files are not read; save them as JPEG or PNG"
    assert why_unknown(b"<html>", "a.jpg") == "not an image that Pillow knows"
    assert not {".heic", ".jxl"} & readable_suffixes()


def test_heic_by_any_name_says_which_plug_in_it_needs(tmp_path: Path) -> None:
    for source in (HEIC, fill(tmp_path, "a.jpg", data=HEIC) / "a.jpg"):
        with pytest.raises(UnreadableImage, match="HEIC needs a plug-in: pip install pillow-heif"):
            read_image(source)


def test_heic_is_read_where_the_plug_in_is(tmp_path: Path, heif_plugin: None) -> None:
    assert ".heic" in readable_suffixes()
    root = fill(tmp_path / "photos", "cat/a.heic", data=HEIC)
    found = part_of(root, "train")
    assert (found.names, found.skipped) == (["cat"], [])
    assert read_image(found.items[0]).tolist() == [[[0, 0, 255]] * 3] * 2
    with pytest.raises(UnreadableImage, match="not an image that Pillow knows"):
        read_image(b"something else")


def test_every_plug_in_has_a_pip_name() -> None:
    assert {plugin.package for plugin in PLUGINS} == {
        "pillow-heif",
        "pillow-avif-plugin",
        "pillow-jxl-plugin",
    }


def test_avif_and_webp_are_read_by_pillow(tmp_path: Path) -> None:
    for suffix in sorted({".avif", ".webp"} & readable_suffixes()):
        path = image(tmp_path / f"a{suffix}")
        assert read_image(path).shape == (8, 8, 3)


@pytest.mark.filterwarnings("error")
def test_pillow_is_asked_for_what_it_knows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow 10.3 warns when it is asked for AVIF."""
    monkeypatch.delitem(features.modules, "avif", raising=False)
    readable_suffixes.cache_clear()
    assert ".avif" not in readable_suffixes()
    readable_suffixes.cache_clear()


# tables and arrays


def rows(root: Path, text: str, name: str = "list.csv") -> Path:
    for number in range(6):
        image(root / f"{number}.png", 40 * number)
    (root / name).write_text(text, encoding="utf-8")
    return root / name


def test_tables_give_their_parts(tmp_path: Path) -> None:
    split = (
        "path,label,split\n0.png,a,train\n1.png,b,train\n2.png,a,test\n3.png,c,test\n4.png,b,val\n"
    )
    file = rows(tmp_path, split)
    assert part_of(file, "train").names == ["a", "b"]
    assert part_of(file, "test").names == ["a", "c"]  # c was never taught: unknown is right
    only_val = rows(tmp_path, "path,label,split\n0.png,a,train\n1.png,b,val\n")
    assert part_of(only_val, "test").names == ["b"]
    only_train = rows(tmp_path, "path,label,split\n0.png,a,train\n")
    assert part_of(only_train, "test").names == ["a"]
    assert in_few_lines(part_of(only_train, "test").skipped) == [
        "skipped the test part: no test rows in list.csv: tested on its training images"
    ]
    assert part_of(only_train, "train").skipped == []
    only_test = rows(tmp_path, "path,label,split\n0.png,a,test\n")
    assert part_of(only_test, "test").names == ["a"]
    with pytest.raises(DafuseError, match="no train rows"):
        part_of(only_test, "train")
    whole = rows(tmp_path, "path,label\n0.png,a\n1.png,b\n")
    assert part_of(whole, "train") == part_of(whole, "test")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_columns_are_separated_as_spreadsheets_do(tmp_path: Path, separator: str) -> None:
    text = "path,label\n0.png,a cat\n1.png,b\n".replace(",", separator)
    assert part_of(rows(tmp_path, text), "train").names == ["a cat", "b"]
    assert table(tmp_path / "list.csv").classes == ["a cat", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no column 'path', its columns are none"),
        ("path,label\n", "no rows"),
        ("file,kind\n0.png,a\n", "no column 'path', its columns are 'file', 'kind'"),
        ("path,label\n0.png,a\n8.png,b\n", "1 of the 2 images .* relative to the table's folder"),
        ("path,label\n,a\n", "1 row.s. without a path"),
        ("path,label\n0.png,a/b\n", "no class can be called 'a/b': a class name has no slashes"),
        ("path,label\n0.png,a\u0007\n", "of characters that can be shown"),
    ],
)
def test_bad_tables_are_one_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(DafuseError, match=expected) as caught:
        lesson_images(rows(tmp_path, text), None)
    assert "\n" not in str(caught.value)


def arrays(path: Path, **contents: Any) -> Path:
    np.savez(path, **contents)
    return path


def test_arrays_give_their_parts(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    train = {"train_images": pixels[:3], "train_labels": np.array([1, 0, 1])}
    test = {"test_images": pixels[3:], "test_labels": np.array([0, 2])}
    names = {"classes": np.array(["cat", "dog", "owl"])}
    file = arrays(tmp_path / "a.npz", **train, **test, **names)
    assert part_of(file, "train").names == ["dog", "cat", "dog"]
    assert part_of(file, "test").names == ["cat", "owl"]
    assert np.array_equal(part_of(file, "test").items, pixels[3:])
    alone = arrays(tmp_path / "b.npz", **train)
    assert part_of(alone, "train").names == part_of(alone, "test").names == ["1", "0", "1"]
    assert [str(one) for one in part_of(alone, "test").skipped] == [
        "the test part: no test images in b.npz: tested on its training images"
    ]
    assert part_of(alone, "train").skipped == part_of(file, "test").skipped == []
    only_test = arrays(tmp_path / "c.npz", **test)
    assert part_of(only_test, "test").names == ["0", "2"]
    for spelt in (names["classes"], np.char.encode(names["classes"])):
        named = arrays(tmp_path / "n.npz", **test, class_names=spelt)
        assert part_of(named, "test").names == ["cat", "owl"]
    twice = arrays(tmp_path / "t.npz", **test, class_names=np.array(["cat", "cat", "owl"]))
    with pytest.raises(DafuseError, match="classes must be different names"):
        part_of(twice, "test")
    (tmp_path / "x.npz").write_text("no archive")
    with pytest.raises(DafuseError, match=r"it is no \.npz archive"):
        part_of(tmp_path / "x.npz", "train")
    with pytest.raises(DafuseError, match="lacks 'train_images', 'train_labels', it has"):
        part_of(only_test, "train")
    other = arrays(tmp_path / "o.npz", images=pixels, labels=np.zeros(5, int))
    with pytest.raises(DafuseError, match="lacks 'test_images', 'test_labels', it has 'images'"):
        part_of(other, "test")
    for half in ("test_images", "test_labels"):  # one alone is no part
        some = arrays(tmp_path / "h.npz", **train, **{half: test[half]})
        assert part_of(some, "test").names == ["1", "0", "1"]
    with pytest.raises(DafuseError, match="has no images: train_images is empty"):
        part_of(
            arrays(tmp_path / "d.npz", train_images=pixels[:0], train_labels=np.zeros(0, int)),
            "train",
        )


@pytest.mark.usefixtures("small_network")
def test_a_model_is_taught_and_tested_by_every_source(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "photos", {0: 4, 1: 4})
    files = sorted(root.rglob("*.png"))
    lines = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in files]
    listed = tmp_path / "list.csv"
    listed.write_text("\n".join(["path,label", *lines]))
    pixels = np.stack([read_image(file) for file in files])
    packed = arrays(
        tmp_path / "pack.npz",
        train_images=pixels,
        train_labels=np.array([file.parent.name for file in files]),
    )
    sources: list[Path | Dataset] = [root, listed, packed, table(listed, test_fraction=0.0)]
    found = []
    for number, source in enumerate(sources):
        classifier = create(tmp_path / str(number))
        classifier.learn(source)
        found.append(classifier.probabilities(list(pixels)))
        for other in (root, listed, packed):
            assert classifier.evaluate(other).images == 8
    assert all(np.array_equal(one, found[0]) for one in found)


def test_tables_and_arrays_need_no_torch(tmp_path: Path) -> None:
    file = rows(tmp_path, "path,label\n0.png,a\n1.png,a\n4.png,b\n5.png,b\n")
    pixels = np.stack([read_image(tmp_path / f"{number}.png") for number in (0, 1, 4, 5)])
    labels = np.array(["a", "a", "b", "b"])
    arrays(tmp_path / "pack.npz", train_images=pixels, train_labels=labels)
    heavy = [name for name in HEAVY if name not in ("rich", "onnx")]
    for arguments in (
        ["learn", "model", "list.csv"],
        ["learn", "model", "pack.npz"],
        ["evaluate", "model", "pack.npz"],
    ):
        done = subprocess.run(
            [*dafuse_without(*heavy), *arguments],
            cwd=file.parent,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = {"list.csv": "learned 2 new classes", "pack.npz": "nothing new: skipped 4 images"}
        if arguments[0] == "learn":
            assert done.stdout.startswith(said[arguments[-1]])
    assert "of 4 images of 2 classes right" in done.stdout


def test_parquet_teaches_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows(tmp_path, "")
    columns = {"path": ["0.png", "1.png"], "label": ["a", "b"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "list.parquet")
    assert part_of(tmp_path / "list.parquet", "train").names == ["a", "b"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DafuseError, match=r"needs pyarrow: pip install 'dafuse\[tables\]'"):
        lesson_images(tmp_path / "list.parquet", None)


def test_what_is_no_source(tmp_path: Path) -> None:
    one = image(tmp_path / "cat.jpg")
    for path, expected in (
        (one, "cat.jpg is one image"),
        (fill(tmp_path, "x.xlsx") / "x.xlsx", "x.xlsx is none of these"),
        (tmp_path / "gone", "no folder .*gone, nor a file"),
        (image(tmp_path / "flat" / "a.jpg").parent, "its images lie directly in it"),
        (fill(tmp_path / "texts", "a.txt"), "only other files in it"),
    ):
        for read in (lambda path: lesson_images(path, None), images_to_test):
            with pytest.raises(DafuseError, match=expected):
                read(path)
    assert kind_of(one) is None
