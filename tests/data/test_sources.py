"""Folders, tables, arrays, benchmarks and the registry: what they give, and what they say."""

import inspect
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafuse.data.benchmarks import PUBLIC_SPLITS, cifar100, imagenet_a, tiny_imagenet
from dafuse.data.dataset import ImageSet
from dafuse.data.folders import folder
from dafuse.data.images import read_image
from dafuse.data.registry import DATASETS, availability, open_dataset
from dafuse.data.splits import split_per_class
from dafuse.data.tables import table
from dafuse.errors import DafuseError
from helpers.places import SHARED

PACKS = SHARED / "data"


def fill(root: Path, *names: str, data: bytes = b"x") -> Path:
    """Files with these names; sources look at names only."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def names_of(images: ImageSet, root: Path) -> list[str]:
    return [images.items[i].relative_to(root).as_posix() for i in images.index.tolist()]


def says(text: str, *words: str) -> None:
    assert "\n" not in text, text
    for word in words:
        assert word in text, text


def error_of(source: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(DafuseError) as caught:
        source(*args, **options)
    says(str(caught.value))
    return str(caught.value)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 5),
    order=st.randoms(use_true_random=False),
)
def test_split_properties(sizes: list[int], fraction: float, seed: int, order: Random) -> None:
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    order.shuffle(labels)
    classes = [f"class {label}" for label in range(len(sizes))]
    is_test = split_per_class(np.array(labels), classes, fraction, seed)
    assert is_test.shape == (len(labels),)  # a mask: disjoint, and covers everything
    test = np.bincount(np.array(labels)[is_test], minlength=len(sizes))
    for size, count in zip(sizes, test.tolist(), strict=True):
        assert size - count >= 1
        assert count >= (1 if size > 1 and fraction > 0 else 0)
        assert abs(count - size * fraction) <= 1 or count == size - 1
    again = split_per_class(np.array(labels), classes, fraction, seed)
    np.testing.assert_array_equal(is_test, again)


def test_later_classes_leave_the_split_of_earlier_ones(tmp_path: Path) -> None:
    fill(tmp_path, *(f"m/{i}.jpg" for i in range(20)))
    before = names_of(folder(tmp_path).test, tmp_path)
    fill(tmp_path, *(f"a/{i}.jpg" for i in range(9)), *(f"z/{i}.jpg" for i in range(9)))
    after = names_of(folder(tmp_path).test, tmp_path)
    assert before == [name for name in after if name.startswith("m/")]


# folders


def test_one_tree_is_split_by_fraction_and_seed(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{c}/{i:02d}.jpg" for c in ("dog", "cat", "Ant") for i in range(10)))
    fill(tmp_path, "one/only.png")
    dataset = folder(tmp_path)
    assert dataset.name == tmp_path.name
    assert dataset.classes == ["Ant", "cat", "dog", "one"]  # ASCII, as of ImageFolder
    assert np.bincount(dataset.train.labels).tolist() == [8, 8, 8, 1]
    assert np.bincount(dataset.test.labels, minlength=4).tolist() == [2, 2, 2, 0]
    everything = names_of(dataset.train, tmp_path) + names_of(dataset.test, tmp_path)
    assert len(set(everything)) == len(everything) == 31
    same, other = folder(tmp_path), folder(tmp_path, split_seed=1)
    assert names_of(same.test, tmp_path) == names_of(dataset.test, tmp_path)
    assert names_of(other.test, tmp_path) != names_of(dataset.test, tmp_path)
    assert len(folder(tmp_path, test_fraction=0).test) == 0
    assert np.bincount(folder(tmp_path, test_fraction=0.5).test.labels).tolist() == [5, 5, 5]


def test_order_of_the_file_system_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, *(f"{c}/{s}/{i}.jpg" for c in "ba" for s in "yx" for i in range(5)))
    before = folder(tmp_path)
    iterdir, walk = Path.iterdir, os.walk

    def walk_backwards(top: Path, **options: Any) -> Iterator[tuple[str, list[str], list[str]]]:
        for here, below, names in walk(top, **options):
            below.reverse()
            yield here, below, names[::-1]

    monkeypatch.setattr(Path, "iterdir", lambda self: iter(list(iterdir(self))[::-1]))
    monkeypatch.setattr(os, "walk", walk_backwards)
    after = folder(tmp_path)
    assert after.classes == before.classes
    assert names_of(after.train, tmp_path) == names_of(before.train, tmp_path)
    assert names_of(after.test, tmp_path) == names_of(before.test, tmp_path)


def test_nested_images_are_found_and_others_ignored(tmp_path: Path) -> None:
    fill(tmp_path, "cat/a.JPG", "cat/deep/er/b.webp", "cat/notes.txt", "cat/.hidden.jpg")
    fill(tmp_path, "cat/.cache/c.jpg", ".git/d.jpg", "readme.md")
    dataset = folder(tmp_path, test_fraction=0)
    assert dataset.classes == ["cat"]
    assert names_of(dataset.train, tmp_path) == ["cat/a.JPG", "cat/deep/er/b.webp"]


@pytest.mark.parametrize("held_out", ["test", "val", "valid", "Test"])
def test_split_trees_are_taken_as_they_are(tmp_path: Path, held_out: str) -> None:
    fill(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "train/b/3.jpg", f"{held_out}/b/4.jpg")
    dataset = folder(tmp_path)
    assert dataset.classes == ["a", "b"]
    assert dataset.train.labels.tolist() == [0, 1, 1]
    assert dataset.test.labels.tolist() == [1]
    assert names_of(dataset.test, tmp_path) == [f"{held_out}/b/4.jpg"]


def test_test_wins_over_val_and_train_may_be_a_class(tmp_path: Path) -> None:
    three = fill(tmp_path / "three", "train/a/1.jpg", "val/a/2.jpg", "test/a/3.jpg")
    assert names_of(folder(three).test, three) == ["test/a/3.jpg"]
    assert folder(fill(tmp_path / "ways", "bus/1.jpg", "train/2.jpg")).classes == ["bus", "train"]


def test_folder_errors(tmp_path: Path) -> None:
    says(error_of(folder, tmp_path / "gone"), "gone", "check the path")
    fill(tmp_path, "file.jpg")
    says(error_of(folder, tmp_path / "file.jpg"), "not a folder")
    says(error_of(folder, tmp_path), "no class folder", "directly", "named after the class")
    (tmp_path / "empty").mkdir()
    says(error_of(folder, tmp_path / "empty"), "no class folder", "empty")
    fill(tmp_path / "holes", "full/1.jpg", "void/notes.txt")
    says(error_of(folder, tmp_path / "holes"), "'void'", "no images", "remove it")
    fill(tmp_path / "more", "train/a/1.jpg", "test/a/1.jpg", "test/new/2.jpg")
    says(error_of(folder, tmp_path / "more"), "'new'", "no training images")
    fill(tmp_path / "half", "train/a/1.jpg", "train/b/1.jpg")
    says(error_of(folder, tmp_path / "half"), "no test/", "half/train")
    fill(tmp_path / "ok", "a/1.jpg", "a/2.jpg")
    for fraction in (1.0, -0.1, float("nan")):
        says(error_of(folder, tmp_path / "ok", fraction), "the test fraction must be")


def test_names_that_differ_only_in_case(tmp_path: Path) -> None:
    fill(tmp_path, "Cat/1.jpg", "cat/2.jpg")
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("the file system itself ignores case")
    says(error_of(folder, tmp_path), "'Cat'", "'cat'", "only in case", "rename")


# tables


def write_csv(root: Path, text: str, name: str = "list.csv") -> Path:
    path = root / name
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_with_a_split_column(tmp_path: Path) -> None:
    fill(tmp_path, "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    rows = "path,label,split\n1.jpg,dog,train\n2.jpg, cat ,Train\n3.jpg,dog,test\n4.jpg,cat,val\n"
    dataset = table(write_csv(tmp_path, "\ufeff" + rows))
    assert dataset.name == "list"
    assert dataset.classes == ["cat", "dog"]
    assert dataset.train.labels.tolist() == [1, 0]
    assert names_of(dataset.test, tmp_path) == ["3.jpg"]  # val is not test where there is a test
    only_val = rows.replace("3.jpg,dog,test\n", "")
    assert names_of(table(write_csv(tmp_path, only_val)).test, tmp_path) == ["4.jpg"]


def test_csv_without_a_split_column(tmp_path: Path) -> None:
    images = fill(tmp_path / "images", *(f"{i}.jpg" for i in range(22)))
    lines = [f"{i}.jpg,{i % 11}" for i in range(22)]
    file = write_csv(tmp_path, "\n".join(["file,kind", *lines]))
    options: dict[str, Any] = {"root": images, "path_column": "file", "label_column": "kind"}
    dataset = table(file, **options)
    assert dataset.classes == [str(i) for i in range(11)]  # numbers by value, 10 after 9
    assert np.bincount(dataset.test.labels).tolist() == [1] * 11
    assert names_of(table(file, **options).test, images) == names_of(dataset.test, images)


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("path,path,label\n1.png,2.png,cat\n")
    with pytest.raises(DafuseError, match=r"a\.csv has two columns 'path'"):
        table(tmp_path / "a.csv")


def test_parquet_is_as_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    fill(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    columns = {"path": ["1.jpg", "2.jpg", "3.jpg"], "label": [10, 9, 9]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "list.parquet")
    rows = "path,label\n1.jpg,10\n2.jpg,9\n3.jpg,9\n"
    as_csv, as_parquet = table(write_csv(tmp_path, rows)), table(tmp_path / "list.parquet")
    assert as_parquet.classes == as_csv.classes == ["9", "10"]
    assert as_parquet.fingerprint() == as_csv.fingerprint()
    fill(tmp_path, "broken.parquet")
    says(error_of(table, tmp_path / "broken.parquet"), "parquet")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "list.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    says(error_of(table, tmp_path / "list.parquet"), "pip install 'dafuse[tables]'")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("image,label\n1.jpg,a\n", ["no column 'path'", "'image'", "path-column"]),
        ("path,kind\n1.jpg,a\n", ["no column 'label'"]),
        ("", ["no column"]),
        ("path,label\n", ["no rows"]),
        ("path,label\n1.jpg,a\n2.jpg,\n", ["1 row(s) without a label", "row 2"]),
        ("path,label\n1.jpg,a\n2.jpg\n", ["without a label"]),
        ("path,label\n1.jpg,a\n8.jpg,a\n9.jpg,a\n", ["2 of the 3", "8.jpg", "root"]),
        ("path,label\n1.jpg,Cat\n2.jpg,cat\n", ["only in case"]),
        ("path,label,split\n1.jpg,a,training\n", ["'training'", "train, test or val"]),
        ("path,label,split\n1.jpg,a,test\n", ["no train rows"]),
        ("path,label,split\n1.jpg,a,train\n2.jpg,b,test\n", ["'b'", "no training images"]),
        ("path,label,split\n1.jpg,a,train\n1.jpg,a,test\n", ["training and in test", "1.jpg"]),
    ],
)
def test_table_errors(tmp_path: Path, rows: str, words: list[str]) -> None:
    fill(tmp_path, "1.jpg", "2.jpg")
    says(error_of(table, write_csv(tmp_path, rows)), *words)


def test_tables_that_are_none(tmp_path: Path) -> None:
    says(error_of(table, tmp_path / "gone.csv"), "no table")
    says(error_of(table, write_csv(tmp_path, "", "list.xlsx")), "neither .csv nor .parquet")
    (tmp_path / "latin.csv").write_bytes("path,label\n1.jpg,café\n".encode("latin-1"))
    says(error_of(table, tmp_path / "latin.csv"), "UTF-8")


# benchmarks


def fill_tree(root: Path, name: str, classes: int, train: int, test: int) -> Path:
    """Totals of images over the classes; the last class takes what is left."""
    for part, total in (("train", train), ("test", test)):
        for label in range(classes):
            count = total // classes + (total % classes if label == classes - 1 else 0)
            fill(root / name / part / f"n{label:03d}", *(f"{i}.jpg" for i in range(count)))
    return root


def test_imagenet_a_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_tree(tmp_path, "imagenet-a", 200, 5981, 1519)
    monkeypatch.setenv("DAFUSE_DATA", str(tmp_path))
    dataset = imagenet_a()
    assert (dataset.name, len(dataset.classes)) == ("imagenet-a", 200)
    assert (len(dataset.train), len(dataset.test)) == (5981, 1519)
    (tmp_path / "imagenet-a/train/n000/0.jpg").unlink()
    says(error_of(imagenet_a), "5980", "5981", "1519", "ina.zip", "--data.no-check-counts")
    assert len(imagenet_a(check_counts=False).train) == 5980
    assert availability("imagenet-a") == (True, f"in {tmp_path}")


@pytest.mark.parametrize("name", PUBLIC_SPLITS)
def test_missing_benchmarks_say_where_they_come_from(tmp_path: Path, name: str) -> None:
    split = PUBLIC_SPLITS[name]
    words = [f"{tmp_path / name}/{{train,test}}", split.archive, split.md5, "RevisitingCIL"]
    says(error_of(DATASETS[name], tmp_path), *words, "80/20", "nothing is downloaded")
    assert not availability(name, tmp_path)[0]
    says(availability(name, tmp_path)[1], *words)


def test_tiny_imagenet(tmp_path: Path) -> None:
    says(error_of(tiny_imagenet, tmp_path), "tiny-imagenet", "{train,test}")
    fill_tree(tmp_path, "tiny-imagenet", 200, 400, 200)
    assert len(tiny_imagenet(tmp_path).classes) == 200
    fill_tree(tmp_path / "other", "tiny-imagenet", 3, 6, 3)
    says(error_of(tiny_imagenet, tmp_path / "other"), "3 classes", "200")


def test_cifar100_tree_is_counted_per_class(tmp_path: Path) -> None:
    fill_tree(tmp_path, "cifar100", 2, 4, 2)
    says(error_of(cifar100, tmp_path), "2 classes", "100")
    assert len(cifar100(tmp_path, check_counts=False).train) == 4
    fill_tree(tmp_path / "small", "cifar100", 100, 200, 100)
    says(error_of(cifar100, tmp_path / "small"), "2 training images of 'n000'", "500")


def test_cifar100_offline_fails_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    start = time.monotonic()
    says(
        error_of(cifar100, tmp_path),
        "cifar-100-python.tar.gz",
        "cifar100/{train,test}",
        "cannot be downloaded",
    )
    assert time.monotonic() - start < 8


def test_cifar100_from_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import cifar

    files = fill(tmp_path / "cifar-100-python", "train", "test", "meta")
    says(error_of(cifar100, tmp_path), "cannot be read", "again")
    monkeypatch.setattr(cifar, "check_integrity", lambda *args: True)  # ours are not the real ones
    pixels = np.arange(2 * 3072, dtype=np.uint16).astype(np.uint8).reshape(2, 3072)
    for name in ("train", "test"):
        (files / name).write_bytes(pickle.dumps({"data": pixels, "fine_labels": [1, 0]}))
    (files / "meta").write_bytes(pickle.dumps({"fine_label_names": ["a", "b"]}))
    dataset = cifar100(tmp_path, check_counts=False)
    assert dataset.classes == ["a", "b"]
    assert dataset.train.labels.tolist() == [1, 0]
    assert isinstance(dataset.test.items, np.ndarray)
    expected = pixels.reshape(2, 3, 32, 32).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(dataset.test.items, expected)


@pytest.mark.skipif(
    not (PACKS / "cifar100-test.npz").is_file(),
    reason=f"needs the packs in {PACKS}",
)
def test_cifar100_real_names_and_order(tmp_path: Path) -> None:
    pack = np.load(PACKS / "cifar100-test.npz")
    names = pack["class_names"].tobytes().decode().split("\n")
    labels, ends = pack["labels"].astype(int), np.cumsum(pack["lengths"].astype(np.int64))
    blob = pack["blob"].tobytes()
    for label, name in enumerate(names):
        row = int(np.flatnonzero(labels == label)[0])
        data = blob[ends[row - 1] if row else 0 : ends[row]]
        fill(tmp_path / "cifar100", f"train/{name}/0.png", f"test/{name}/0.png", data=data)
    dataset = cifar100(tmp_path, check_counts=False)
    assert dataset.classes == names  # the official fine labels are alphabetical
    assert dataset.test.labels.tolist() == list(range(100))
    assert read_image(dataset.test.items[0]).shape == (32, 32, 3)


def test_every_source_documents_every_option() -> None:
    for name, source in DATASETS.items():
        text = inspect.getdoc(source) or ""
        assert "Args:" in text, name
        for parameter in inspect.signature(source).parameters:
            assert f"\n    {parameter}: " in text, (name, parameter)


def test_open_by_name_and_by_path(tmp_path: Path) -> None:
    assert len(open_dataset("glyphs", train_per_class=1, test_per_class=0, size=16).train) == 62
    fill(tmp_path, "a/1.jpg", "b/2.jpg")
    assert open_dataset(str(tmp_path), test_fraction=0.5).classes == ["a", "b"]
    rows = write_csv(tmp_path, "path,label\na/1.jpg,a\nb/2.jpg,b\n")
    assert open_dataset(str(rows)).classes == ["a", "b"]
    pixels, labels = np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, np.int64)
    parts = {"train_images": pixels, "train_labels": labels}
    np.savez(tmp_path / "x.npz", **parts, test_images=pixels, test_labels=labels)  # type: ignore[arg-type]
    assert open_dataset(str(tmp_path / "x.npz")).name == "x"


def test_unknown_names_and_options(tmp_path: Path) -> None:
    says(error_of(open_dataset, "imagenet_r2"), "did you mean imagenet-r?", "glyphs, folder")
    says(error_of(open_dataset, "CIFAR-100"), "did you mean cifar100?")
    says(error_of(open_dataset, str(tmp_path / "gone")), "no data set", "path to a folder")
    says(error_of(open_dataset, "glyphs", colour="red"), "'colour'", "train_per_class")
    says(error_of(open_dataset, "folder"), "root")
    says(error_of(availability, "nothing"), "no data set")


def test_availability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFUSE_DATA", str(tmp_path))
    for name in DATASETS:
        there, line = availability(name)
        assert there is (name in ("glyphs", "folder", "table", "arrays"))
        says(line)
    assert availability("folder", tmp_path) == (True, str(tmp_path))
    assert not availability("table", tmp_path / "gone.csv")[0]
    fill(tmp_path / "cifar-100-python", "train", "test", "meta")
    assert availability("cifar100")[0]


def test_listing_the_sources_needs_no_torch() -> None:
    code = "import sys, dafuse.data.registry; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
