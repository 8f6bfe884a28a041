"""Images taught before are recognised; what is kept for that, and what becomes of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dafuse.data.images import reduced
from dafuse.product.classifier import Classifier
from dafuse.product.seen import (
    MOST_OBJECTS,
    Hashes,
    MetSoFar,
    Seen,
    digest_of,
    with_lesson,
)
from dafuse.product.version import new_key
from helpers.product_models import create, files, pictures, taught, write_folders

pytestmark = pytest.mark.usefixtures("small_network")


def hashes(classifier: Classifier) -> dict[int, int]:
    """Return the number of hashes kept of each class, by its id."""
    found = Seen.of(classifier.folder, classifier.version).by_key.values()
    ids = [int(number) for one in found for number in one.classes_N]
    return {number: ids.count(number) for number in sorted(set(ids))}


def test_a_digest_is_of_the_pixels_and_their_shape() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    assert digest_of(pixels) == digest_of(pixels.copy(order="F"))
    assert digest_of(pixels) != digest_of(pixels.reshape(6, 4, 3))
    other = pixels.copy()
    other[3, 5, 2] ^= 1
    assert digest_of(pixels) != digest_of(other)


def test_a_large_picture_has_the_digest_of_what_it_is_reduced_to() -> None:
    large = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), np.uint8)
    assert digest_of(large) == digest_of(large.copy(order="F")) == digest_of(reduced(large))
    assert digest_of(large) != digest_of(255 - large)


def of_lesson(seen: Seen, digests: list[bytes], classes: list[int]) -> Hashes:
    met = MetSoFar()
    for digest, label in zip(digests, classes, strict=True):  # each a shard of its own
        met.add(np.array([seen.hash_of(digest)], np.uint64), np.array([label]))
    return met.all(np.arange(max(classes) + 1))


def test_hashes_are_found_by_their_key_alone(tmp_path: Path) -> None:
    digests = [digest_of(np.full((2, 2, 3), level, np.uint8)) for level in range(50)]
    classifier = taught(tmp_path / "model", {0: 2})
    version = replace(classifier.version, seen=[], key=new_key())
    folder, classes = classifier.folder, [level % 3 for level in range(40)]
    seen = Seen.of(folder, version)
    objects = with_lesson(folder, version, seen, of_lesson(seen, digests[:40], classes))
    seen = Seen.of(folder, replace(version, seen=objects))
    assert [seen.class_of(digest) for digest in digests[:4]] == [0, 1, 2, 0]
    assert not any(seen.class_of(digest) is not None for digest in digests[40:])
    (kept,) = seen.by_key.values()
    assert kept.hashes_N.nbytes == 40 * 8
    assert (np.diff(kept.hashes_N.astype(object)) > 0).all()
    other = Seen(new_key(), {"00" * 16: kept})
    assert other.class_of(digests[0]) is None


def test_each_lesson_brings_an_object_of_hashes_and_versions_share_them(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 3}, {1: 3}, {0: 3, 2: 3})
    first, second, third = (version.seen for version in classifier.folder.history())
    assert (first, second) == (third[:1], third[:2])
    assert hashes(classifier) == {0: 6, 1: 3, 2: 3}
    classifier.forget("class 2")
    assert classifier.version.seen[:2] == third[:2]  # which know nothing of it
    assert hashes(classifier) == {0: 6, 1: 3}


def test_hashes_of_very_many_lessons_become_one_object(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 2})
    folder, version = classifier.folder, replace(classifier.version, seen=[])
    for number in range(MOST_OBJECTS + 1):
        digest = digest_of(np.full((1, 1, 3), number, np.uint8))
        seen = Seen.of(folder, version)
        lesson = of_lesson(seen, [digest], [number])
        version = replace(version, seen=with_lesson(folder, version, seen, lesson))
    assert len(version.seen) == 1
    (kept,) = Seen.of(folder, version).by_key.values()
    assert sorted(kept.classes_N) == list(range(MOST_OBJECTS + 1))


def test_one_folder_may_grow(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "photos", {0: 5, 1: 5})
    classifier = create(tmp_path / "model")
    assert classifier.learn(root).again == 0
    before = files(tmp_path / "model")
    report = classifier.learn(root)
    assert (report.version, report.again, report.classes, report.accuracy) == (1, 10, [], None)
    assert report.lines() == [
        "nothing new: skipped 10 images taught before; the model stays at version 1"
    ]
    assert files(tmp_path / "model") == before
    write_folders(tmp_path / "more", {0: 3, 2: 3}, seed=1)
    for file in sorted((tmp_path / "more").rglob("*.png")):
        (root / file.parent.name).mkdir(exist_ok=True)
        file.rename(root / file.parent.name / f"more-{file.name}")
    report = classifier.learn(root)
    assert (report.version, report.again, report.skipped) == (2, 10, [])
    assert [(one.name, one.images, one.known_from) for one in report.classes] == [
        ("class 0", 3, 8),
        ("class 2", 3, 3),
    ]
    assert "  skipped 10 images taught before" in report.lines()
    assert classifier.version.step["again"] == 10
    assert hashes(classifier) == {0: 8, 1: 5, 2: 3}


def test_names_and_kinds_of_files_do_not_matter(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "photos", {0: 3, 1: 3})
    classifier = create(tmp_path / "model")
    classifier.learn(root)
    for number, file in enumerate(sorted((root / "class 0").iterdir())):
        Image.open(file).save(tmp_path / f"other-{number}.bmp")
    images = sorted(tmp_path.glob("*.bmp"))
    assert classifier.learn([str(image) for image in images], ["class 0"] * 3).again == 3
    assert classifier.learn([np.array(Image.open(images[0]))], ["class 0"]).again == 1


def test_a_picture_of_another_class_is_named_and_skipped(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "photos", {0: 3, 1: 3})
    classifier = create(tmp_path / "model")
    classifier.learn(root)
    moved = root / "class 0" / "000.png"
    moved.rename(root / "class 1" / "000.png")
    report = classifier.learn(root)
    assert (report.again, report.version) == (5, 1)
    (line,) = report.skipped
    assert line.startswith(f"{root / 'class 1' / '000.png'}: taught as class 0 before, so not as")
    assert "rename class 0" in line
    images = pictures({0: 3, 1: 3})[0][:3]
    report = classifier.learn(images[1:], ["class 9"] * 2)
    assert (report.classes, len(report.skipped), len(classifier.classes)) == ([], 2, 2)
    assert "taught before as another class" in report.lines()[0]
    assert classifier.learn(images[1:], ["class 9"] * 2, recognise=False).new


def test_copies_in_one_lesson_count_once(tmp_path: Path) -> None:
    images, names = pictures({0: 4, 1: 4})
    classifier = create(tmp_path / "model")
    report = classifier.learn([*images, images[0], images[0]], [*names, names[0], names[-1]])
    assert (report.twice, report.again) == (1, 0)
    assert report.skipped == [
        "image 9: the same image is in class 0, so it is not taught as class 1; "
        "keep it in one of them"
    ]
    assert [record.images for record in classifier.version.classes] == [4, 4]
    assert "  skipped 1 copy of images in this lesson" in report.lines()
    alone = create(tmp_path / "alone")
    alone.learn(images, names)
    assert np.array_equal(alone.probabilities(images), classifier.probabilities(images))


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    images, names = pictures({0: 4, 1: 4})
    classifier = create(tmp_path / "model")
    classifier.learn(images, names, recognise=False)
    assert classifier.version.seen == []
    assert "No hash of any image is kept" in "\n".join(classifier.ledger().lines())
    report = classifier.learn([*images, images[0]], [*names, names[0]], recognise=False)
    assert [one.images for one in report.classes] == [5, 4]
    classifier.learn(images, names)
    assert hashes(classifier) == {0: 4, 1: 4}
    kept = classifier.version.seen
    classifier.learn(*pictures({2: 4}, seed=1), recognise=False)
    assert classifier.version.seen == kept


def test_undo_forget_and_rename(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 4, 1: 4}, {2: 4})
    images, names = pictures({2: 4}, seed=1)
    assert classifier.learn(images, names).again == 4
    classifier.undo()
    assert hashes(classifier) == {0: 4, 1: 4}
    assert classifier.learn(images, names).new  # as what was undone was never taught
    classifier.rename("class 2", "two")
    assert classifier.learn(images, ["two"] * 4).again == 4
    assert len(classifier.learn(images, names).skipped) == 4
    classifier.forget("two")
    assert hashes(classifier) == {0: 4, 1: 4}
    classifier.undo()
    assert hashes(classifier) == {0: 4, 1: 4, 2: 4}
    seen = classifier.folder.object_file(classifier.version.seen[-1])
    classifier.forget("two", for_good=True)
    assert not seen.exists()
    assert hashes(classifier) == {0: 4, 1: 4}
    assert classifier.learn(images, names).new  # forgotten: it can be taught again


def test_for_good_leaves_no_hash_of_the_class_in_any_file(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 4, 1: 4}, {2: 4}, {3: 4})
    (kept,) = Seen.of(classifier.folder, classifier.version).by_key.values()
    of_two = kept.hashes_N[kept.classes_N == 2]
    assert of_two[0].tobytes() in b"".join(files(tmp_path / "model").values())
    classifier.forget("class 2", for_good=True)
    everything = b"".join(files(tmp_path / "model").values())
    assert not [one for one in of_two if one.tobytes() in everything]
    assert kept.hashes_N[kept.classes_N == 3][0].tobytes() in everything


def test_a_model_without_a_key_gets_one(tmp_path: Path) -> None:
    """Models of the old format have none."""
    classifier = create(tmp_path / "model")
    images, names = pictures({0: 4, 1: 4})
    classifier.learn(images, names, recognise=False)
    classifier.folder.publish(replace(classifier.version, key=""))
    classifier.refresh()
    classifier.learn(*pictures({2: 3}, seed=1))
    assert len(bytes.fromhex(classifier.version.key)) == 16
    assert classifier.learn(*pictures({2: 3}, seed=1)).again == 3
    assert Classifier.open(tmp_path / "model").learn(*pictures({2: 3}, seed=1)).again == 3


def test_two_models_hash_with_keys_of_their_own(tmp_path: Path) -> None:
    one, other = (taught(tmp_path / name, {0: 4, 1: 4}) for name in ("a", "b"))
    found = [Seen.of(model.folder, model.version).by_key for model in (one, other)]
    ((first,), (second,)) = (kept.values() for kept in found)
    assert not set(first.hashes_N.tolist()) & set(second.hashes_N.tolist())


def test_a_merged_model_recognises_what_all_were_taught(tmp_path: Path) -> None:
    one, other = taught(tmp_path / "a", {0: 4, 1: 4}), create(tmp_path / "b")
    other.learn(*pictures({1: 3, 2: 3}, seed=1))
    merged = Classifier.merge([one, other], tmp_path / "c")
    assert not merged.version.step["compared"]
    assert hashes(merged) == {0: 4, 1: 7, 2: 3}
    assert merged.learn(*pictures({0: 4, 1: 4})).again == 8
    assert merged.learn(*pictures({1: 3, 2: 3}, seed=1)).again == 6
    merged.forget("class 1")
    assert hashes(merged) == {0: 4, 2: 3}
    merged.learn(*pictures({5: 2}, seed=2))
    assert merged.learn(*pictures({5: 2}, seed=2)).again == 2


def test_merging_copies_says_what_counts_twice(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "a", {0: 4, 1: 4})
    (tmp_path / "b").mkdir()
    for name, data in files(tmp_path / "a").items():
        (tmp_path / "b" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "b" / name).write_bytes(data)
    copy = Classifier.open(tmp_path / "b")
    copy.learn(*pictures({2: 4}, seed=1))
    merged = Classifier.merge([classifier, copy], tmp_path / "c")
    assert (merged.version.step["twice"], merged.version.step["compared"]) == (8, True)
    assert hashes(merged) == {0: 4, 1: 4, 2: 4}


def test_the_ledger_says_what_hashes_are_and_how_many(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 4, 1: 4})
    text = "\n".join(classifier.ledger().lines())
    objects = map(classifier.folder.object_file, classifier.version.seen)
    size = sum(file.stat().st_size for file in objects)
    assert f"a key of this model: 8 of them, {size:,} bytes" in text
    assert "uint64 [8]  64 bytes: a hash of each image's pixels" in text
    assert "How an image looks cannot be told" in text


def test_known_pictures_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = taught(tmp_path / "model", {0: 6, 1: 6})
    asked: list[int] = []
    encode = classifier.extractor.encode

    def counted(squares: np.ndarray, *rest: object) -> np.ndarray:
        asked.append(len(squares))
        return encode(squares, *rest)

    monkeypatch.setattr(classifier.extractor, "encode", counted)
    images, names = pictures({0: 6, 1: 6})
    more, other = pictures({2: 2}, seed=1)
    classifier.learn([*images, *more, more[0]], [*names, *other, other[0]])
    assert asked == [2]
