"""Undo, forget and rename; what info and the ledger say."""

import errno
import shutil
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from dafuse.errors import DafuseError
from dafuse.heads.resting import RECORDS
from dafuse.methods.lift_parts import lift_of
from dafuse.product import steps
from dafuse.product.classifier import Classifier
from dafuse.product.folder import KEPT, ModelFolder
from dafuse.progress import Progress
from helpers.product_models import create, files, pictures, taught

pytestmark = pytest.mark.usefixtures("small_network")


@pytest.fixture
def classifier(tmp_path: Path, small_network: None) -> Classifier:
    return taught(tmp_path / "model", {0: 6, 1: 6}, {2: 6, 3: 6})


def test_undo_steps_back_again_and_again(classifier: Classifier) -> None:
    path = classifier.folder.path
    images, _ = pictures({0: 3, 2: 3}, seed=5)
    states = [(files(path), classifier.probabilities(images))]
    classifier.learn(*pictures({0: 4, 4: 5}, seed=2))
    states.append((files(path), classifier.probabilities(images)))
    classifier.rename("class 4", "four")
    classifier.undo()
    assert files(path) == states[1][0]  # to the byte
    classifier.undo()
    assert files(path) == states[0][0]
    assert np.array_equal(classifier.probabilities(images), states[0][1])
    classifier.undo()
    assert classifier.classes == ["class 0", "class 1"]
    with pytest.raises(DafuseError, match="nothing to undo"):
        classifier.undo()
    classifier.learn(*pictures({7: 6}))
    assert classifier.version.number == 2


def test_forget_removes_a_class_and_undo_brings_it_back(classifier: Classifier) -> None:
    images, _ = pictures({0: 4, 1: 4, 2: 4}, seed=5)
    before = classifier.probabilities(images)
    forgotten = classifier.forget("class 1")
    assert (forgotten.for_good, forgotten.versions) == (False, [])
    assert classifier.classes == ["class 0", "class 2", "class 3"]
    classifier.learn(*pictures({5: 5, 6: 5}, seed=6))  # and it can learn on
    assert classifier.classes == ["class 0", "class 2", "class 3", "class 5", "class 6"]
    classifier.undo()
    classifier.undo()
    assert np.array_equal(classifier.probabilities(images), before)


def test_an_accent_may_be_spelt_in_two_ways(classifier: Classifier) -> None:
    one, two = "caf\u00e9", "cafe\u0301"
    classifier.rename("class 1", two)
    assert classifier.classes[1] == one
    classifier.rename(two, "cafeteria")
    classifier.rename("cafeteria", one)
    with pytest.raises(DafuseError, match=r"is called '.+' already"):
        classifier.rename(one, two)
    assert classifier.forget(two).names == [one]
    assert classifier.classes == ["class 0", "class 2", "class 3"]
    assert classifier.forget(two, for_good=True).versions
    with pytest.raises(DafuseError, match="no class is called"):
        classifier.forget(two)


def test_forgetting_for_good_leaves_nothing_to_undo_to(classifier: Classifier) -> None:
    path = classifier.folder.path
    gone = classifier.version.classes[2].record
    classifier.rename("class 2", "two")  # older versions know it by another name
    forgotten = classifier.forget("two", for_good=True)
    assert forgotten.versions == [1, 2, 3]
    assert not [name for name in files(path) if gone in name]
    text = b"".join(data for name, data in files(path).items() if name.endswith(".json"))
    assert b"class 2" not in text
    assert b"two" not in text
    assert [step["version"] for step in classifier.info().steps] == [1, 2, 3, 4]
    with pytest.raises(DafuseError, match="nothing to undo: the versions"):
        classifier.undo()  # the lesson that taught class 3 stays in force
    assert classifier.classes == ["class 0", "class 1", "class 3"]


def test_undo_takes_back_one_step_after_a_class_was_forgotten_for_good(
    classifier: Classifier,
) -> None:
    classifier.learn(*pictures({4: 5}, seed=2))
    classifier.learn(*pictures({5: 5}, seed=3))
    classifier.forget("class 4", for_good=True)
    classifier.learn(*pictures({6: 5}, seed=4))
    classifier.undo()
    assert classifier.classes == ["class 0", "class 1", "class 2", "class 3", "class 5"]


def test_a_class_forgotten_was_never_taught(classifier: Classifier, tmp_path: Path) -> None:
    """Records of classes let the others be solved as if it had never been there."""
    without = taught(tmp_path / "other", {0: 6, 1: 6})
    without.learn(*pictures({3: 6}, seed=5))
    classifier.undo()
    classifier.learn(*pictures({2: 6}, seed=9))
    classifier.learn(*pictures({3: 6}, seed=5))
    classifier.forget("class 2")
    records = [[one.record for one in model.version.classes] for model in (classifier, without)]
    assert records[0] == records[1]


def test_old_versions_go_beyond_twenty_and_by_trim(classifier: Classifier) -> None:
    images, _ = pictures({0: 3}, seed=5)
    for number in range(KEPT):
        classifier.rename(classifier.classes[0], f"name {number}")
    assert classifier.folder.numbers() == list(range(3, KEPT + 3))
    assert len(classifier.info().steps) == KEPT + 2
    expected = classifier.probabilities(images)
    assert len(classifier.trim(2)) == KEPT - 2
    assert np.array_equal(classifier.probabilities(images), expected)
    classifier.undo()
    with pytest.raises(DafuseError, match="nothing to undo"):
        classifier.undo()
    with pytest.raises(DafuseError, match="at least 1"):
        classifier.trim(0)


def test_what_was_forgotten_can_still_be_forgotten_for_good(classifier: Classifier) -> None:
    gone = classifier.version.classes[0].record
    classifier.forget("class 0")
    assert classifier.folder.object_file(gone).exists()
    classifier.forget("class 0", for_good=True)
    assert not classifier.folder.object_file(gone).exists()
    assert classifier.classes == ["class 1", "class 2", "class 3"]
    with pytest.raises(DafuseError, match="nothing to undo"):  # a history before it named the class
        classifier.undo()
    assert classifier.classes == ["class 1", "class 2", "class 3"]


def test_for_good_forgets_all_that_ever_had_the_name_and_are_gone(classifier: Classifier) -> None:
    gone = classifier.version.classes[0].record
    classifier.forget("class 0")
    classifier.learn(*pictures({0: 6}, seed=8))
    classifier.rename("class 1", "one")
    classifier.rename("class 0", "class 1")  # a name that another class had, which is still here
    classifier.forget("class 1", for_good=True)
    assert "one" in classifier.classes
    assert not classifier.folder.object_file(gone).exists()  # older versions went with it
    with pytest.raises(DafuseError, match="no class is called 'class 0'"):
        classifier.forget("class 0", for_good=True)
    with pytest.raises(DafuseError, match="nothing to undo"):
        classifier.undo()


@pytest.mark.parametrize("name", ["learn", "merge", "rename", "forget"])
def test_a_class_may_be_called_as_a_step_is(name: str, tmp_path: Path) -> None:
    images, names = pictures({0: 3, 1: 3, 2: 3})
    classifier = create(tmp_path / "model")
    classifier.learn(images, [name if one == "class 0" else one for one in names])
    classifier.forget(name, for_good=True)
    steps_done = classifier.info().steps
    assert [step["did"] for step in steps_done] == ["learn", "forget"]
    assert name not in [one["name"] for one in steps_done[0]["classes"]]
    assert "left out in turn" in steps_done[0]["how"]
    assert classifier.info().lines()


def test_for_good_forgets_names_of_versions_that_are_gone(classifier: Classifier) -> None:
    classifier.rename("class 2", "two")
    classifier.trim(1)
    classifier.forget("two", for_good=True)
    classifier.forget("class 3")
    classifier.trim(1)
    classifier.forget("class 3", for_good=True)  # only the history tells of it
    text = b"".join(d for name, d in files(classifier.folder.path).items() if ".json" in name)
    assert [name for name in (b"class 2", b"two", b"class 3") if name in text] == []
    assert classifier.classes == ["class 0", "class 1"]
    assert len(classifier.info().steps) == 6


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_class_is_not_forgotten_by_a_name_that_it_had_before(
    classifier: Classifier, trimmed: bool
) -> None:
    classifier.rename("class 2", "two")
    if trimmed:
        classifier.trim(1)
    before = files(classifier.folder.path)
    with pytest.raises(DafuseError, match=r"'class 2' any more: it is called 'two' now"):
        classifier.forget("class 2", for_good=True)
    assert files(classifier.folder.path) == before


def test_a_model_whose_folder_says_nothing_more_is_not_begun_anew(classifier: Classifier) -> None:
    pointer = classifier.folder.pointer_file.read_bytes()
    classifier.folder.pointer_file.unlink()
    before = files(classifier.folder.path)
    with pytest.raises(DafuseError, match=r"model\.json is missing"):
        classifier.learn(*pictures({5: 3}))
    assert files(classifier.folder.path) == before
    classifier.folder.pointer_file.write_bytes(pointer)
    shutil.move(classifier.folder.path, classifier.folder.path.with_name("elsewhere"))
    with pytest.raises(DafuseError, match="is gone: bring its folder back"):
        classifier.learn(*pictures({5: 3}))


def test_merge_does_not_overwrite_a_model_that_came_meanwhile(
    classifier: Classifier, tmp_path: Path
) -> None:
    other, out = taught(tmp_path / "other", {7: 3, 8: 3}), tmp_path / "out"

    class Slow(type(other.folder)):  # type: ignore[misc]
        """Another process teaches a model there while this one reads what is to be merged."""

        def arrays(self, digest: str) -> dict[str, np.ndarray]:
            if digest in other.version.seen:
                taught(out, {0: 3, 1: 3})
            return super().arrays(digest)

    other.folder = Slow(other.folder.path)
    with pytest.raises(DafuseError, match=r"there is a model .* by now"):
        Classifier.merge([classifier, other], out)
    assert Classifier.open(out).classes == ["class 0", "class 1"]


def test_undo_takes_back_nothing_that_came_while_it_waited(classifier: Classifier) -> None:
    class Meanwhile(Progress):
        """A progress by which, while the lock is waited for, its holder finishes a step."""

        def say(self, line: str) -> None:
            classifier.folder.publish(after)
            held.release()

    head = classifier.folder.current()
    after = classifier.version.next({"did": "rename"}, head.sha256)
    held = _Held(classifier.folder)
    with pytest.raises(DafuseError, match="changed meanwhile, to version 3"):
        steps.undo(classifier.folder, Meanwhile())
    assert classifier.folder.current().number == 3


class _Held:
    """Another thread that is changing a model."""

    def __init__(self, folder: ModelFolder) -> None:
        self._folder, self._go_on, began = folder, Event(), Event()
        self._thread = Thread(target=self._hold, args=(began,))
        self._thread.start()
        assert began.wait(10)

    def release(self) -> None:
        self._go_on.set()
        self._thread.join()

    def _hold(self, began: Event) -> None:
        with self._folder.changing(Progress()):
            began.set()
            self._go_on.wait(10)


def test_a_class_that_comes_again_is_another_class(classifier: Classifier) -> None:
    old = classifier.version.classes[3].id
    classifier.forget("class 3")
    classifier.learn(*pictures({3: 6}, seed=8))
    assert classifier.version.classes[-1].name == "class 3"
    assert classifier.version.classes[-1].id > old


def test_bad_names_change_nothing(classifier: Classifier) -> None:
    path = classifier.folder.path
    before = files(path)
    everything = classifier.classes
    for change, expected in (
        (lambda: classifier.forget(), "name the classes"),
        (lambda: classifier.forget(for_good=True), "name the classes"),
        (lambda: classifier.forget("class 9"), "no class is called 'class 9'"),
        (lambda: classifier.forget("class 0", "class 9", for_good=True), "'class 9'"),
        (lambda: classifier.forget(*everything), "all classes"),
        (lambda: classifier.rename("class 9", "x"), "no class is called 'class 9'"),
        (lambda: classifier.rename("class 0", "class 1"), "'class 1' already"),
        (lambda: classifier.rename("class 0", "CLASS 1"), "'class 1' already"),
        (lambda: classifier.rename("class 0", " "), "empty"),
    ):
        with pytest.raises(DafuseError, match=expected):
            change()
    assert files(path) == before
    classifier.rename("class 0", "Class 0")  # another case of its own name
    assert classifier.classes[0] == "Class 0"


def test_info_tells_the_history(classifier: Classifier) -> None:
    classifier.learn(*pictures({0: 6, 4: 1}, seed=2))
    classifier.rename("class 4", "four")
    classifier.forget("class 1")
    info = classifier.info()
    assert info.bytes == sum(len(data) for data in files(classifier.folder.path).values())
    text = "\n".join(info.lines())
    for expected in (
        "learned class 0 (6), class 1 (6)",
        "class 4 (1), class 0 (+6)",
        "renamed class 4 to four",
        "forgot class 1",
        "version 5",
        classifier.version.backbone.tag,
    ):
        assert expected in text
    (line,) = [line for line in info.lines() if line.startswith("class 0 ")]
    assert line.split()[2] == "12"


def test_the_ledger_accounts_for_every_byte(classifier: Classifier) -> None:
    classifier.learn(*pictures({5: 1}, seed=3))
    classifier.forget("class 1")
    path = classifier.folder.path
    (path / "notes.txt").write_text("somebody's own")
    ledger = classifier.ledger()
    assert ledger.bytes == sum(len(data) for data in files(path).values())
    assert {entry.file for entry in ledger.entries} == {*files(path), ".lock"}
    text = "\n".join(ledger.lines())
    assert "notes.txt  14 bytes\n  not part of the model" in text
    assert "not looked into: notes.txt" in text
    assert "record of class 1, from 6 images, kept for undo" in text
    assert f"numbers, of 6 images with {6 * 24 * 24 * 3:,} numbers" in text
    assert "one or two images" in text
    assert text.split("for undo: ")[-1].startswith("class 5.")


def test_the_ledger_says_whose_single_images_follow_from_two_versions(tmp_path: Path) -> None:
    classifier = taught(tmp_path / "model", {0: 4, 1: 4})
    assert "one or two images" not in "\n".join(classifier.ledger().proof())
    classifier.learn(*pictures({1: 1}, seed=3))
    assert "for undo: class 1." in "\n".join(classifier.ledger().proof())
    mean, more = (
        _mean(classifier.folder.arrays(version.classes[1].record))
        for version in classifier.info().history
    )
    (image,), _ = pictures({1: 1}, seed=3)
    weights = lift_of(classifier.extractor, "moments", 0, 1993, mean).weights_F
    feature = classifier.model.features([image])[0] * weights
    assert np.allclose(5 * more - 4 * mean, feature, atol=0.05 * np.abs(feature).max())


def _mean(record: dict[str, np.ndarray]) -> np.ndarray:
    """The mean of a class's features, as its record has it."""
    step = np.repeat(record["means_step"], RECORDS["means"][1])[: len(record["means"])]
    return record["means"] * step.astype(np.float64)


def test_for_good_leaves_no_name_in_versions_that_undo_can_reach(tmp_path: Path) -> None:
    """It leaves none even if the class was forgotten before and other steps came since."""
    model = taught(tmp_path / "model", {0: 4, 1: 4}, {2: 4, 3: 4})
    model.rename("class 1", "oak")
    model.forget("oak")
    model.learn(*pictures({4: 4}, seed=5))
    model.forget("oak", for_good=True)
    kept = [path.read_text() for path in (tmp_path / "model" / "versions").iterdir()]
    assert not any("oak" in text or '"class 1"' in text for text in kept)
    with pytest.raises(DafuseError, match="nothing to undo"):
        model.undo()
    assert model.classes == ["class 0", "class 2", "class 3", "class 4"]


def test_a_step_counts_though_the_disk_lets_nothing_be_deleted_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = taught(tmp_path / "model", {0: 2, 1: 2}, {2: 2})
    folder = model.folder

    def unlink(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        steps.undo(folder)
        assert folder.read(lambda version: version.names) == ["class 0", "class 1"]
    steps.rename(folder, "class 1", "name 0")
    assert folder.numbers() == [1, 2]
    deletions = [lambda: steps.trim(folder, 1), lambda: model.forget("class 0", for_good=True)]
    for number, deletion in enumerate(deletions):
        steps.rename(folder, f"name {number}", f"name {number + 1}")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", unlink)
            with pytest.raises(DafuseError, match=r"the step is done, but .*(objects|versions)"):
                deletion()
    assert folder.read(lambda version: version.names) == ["name 2"]
