"""Lessons read by a Ray cluster of three nodes on this machine, and lessons that go on."""

import hashlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load, save

from dafuse.errors import DafuseError
from dafuse.product import shards, spread
from dafuse.product.classifier import Classifier
from dafuse.product.folder import ModelFolder
from dafuse.product.objects import read_arrays
from dafuse.product.reading import Reader
from dafuse.product.unfinished import from_arrays, to_arrays
from dafuse.progress import Bar, Progress
from helpers.file_server import serving
from helpers.processes import dafuse, dafuse_without
from helpers.product_models import QUICK, create, files, pictures, write_folders
from helpers.ray_clusters import LOOPBACK, ray_cluster
from helpers.small_shards import SIZE, TRIED, killed_at_the_fourth_shard, with_small_shards
from helpers.tar_files import samples, write_tar

LESSON = {0: 23, 1: 9, 2: 18, 3: 1, 4: 14}
SHARDS = 7

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Any]:
    with ray_cluster([0, 1, 1]) as started:
        yield started


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD", SIZE)
    monkeypatch.setattr(shards, "TRIED_ON", TRIED)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folders(tmp_path_factory.mktemp("photos"), LESSON)


@pytest.fixture(scope="module")
def alone(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """The model of one process."""
    model = create(tmp_path_factory.mktemp("models") / "alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD", SIZE)
        patch.setattr(shards, "TRIED_ON", TRIED)
        model.learn(photos)
    return model


def require_equal(one: Classifier, other: Classifier) -> None:
    """Compare all that two models have learned, and how many images."""
    assert one.classes == other.classes
    counts = [
        [(record.images, record.pixels) for record in model.version.classes]
        for model in (one, other)
    ]
    assert counts[0] == counts[1]
    mine, its = (read_arrays(model.folder, model.version) for model in (one, other))
    assert mine.keys() == its.keys()
    for name, array in mine.items():
        np.testing.assert_allclose(array, its[name], rtol=1e-9, atol=1e-12, err_msg=name)
    for name, number in one.version.numbers.items():
        assert other.version.numbers[name] == pytest.approx(number, rel=1e-9)


class Noting(Progress):
    """Keeps what is said, and calls a function once so many images are read."""

    def __init__(self, images: int = 0, call: Callable[[], None] = lambda: None) -> None:
        self.images, self.call = images, call
        self.said: list[str] = []
        self.notes: list[str] = []

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        yield NotingBar(total, self)

    def say(self, line: str) -> None:
        self.said.append(line)


class NotingBar(Bar):
    def __init__(self, total: int, progress: Noting) -> None:
        super().__init__(total)
        self.progress = progress

    def advance(self, steps: int = 1, note: str = "") -> None:
        before = self.done
        super().advance(steps, note)
        self.progress.notes.append(f"{self.done} of {self.total}: {note}")
        if before < self.progress.images <= self.done:
            self.progress.call()


def reads(node: Any) -> bool:
    """Tell whether a worker of this node reads a shard: Ray names its process so meanwhile."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    found = False
    for one in raylet.children(recursive=True):
        with suppress(psutil.Error):  # it is gone already
            found = found or "ray::_read" in " ".join(one.cmdline())
    return found


def waited_for(find: Callable[[], list[Any]], seconds: float = 20.0) -> list[Any]:
    """Return what is found, as soon as there is something."""
    end = time.monotonic() + seconds
    while not (found := find()) and time.monotonic() < end:
        time.sleep(0.002)
    return found


class TestOnACluster:
    def test_the_model_is_that_of_one_process(
        self, three_nodes: Any, photos: Path, alone: Classifier, tmp_path: Path
    ) -> None:
        model, progress = create(tmp_path / "model"), Noting()
        model.learn(photos, cluster=three_nodes.address, progress=progress)
        require_equal(model, alone)
        assert progress.notes[-1] == f"65 of 65: {SHARDS} of {SHARDS} shards"
        assert len(progress.notes) == SHARDS
        assert not (tmp_path / "model" / "unfinished").exists()

    def test_a_node_that_is_killed_in_the_middle_loses_nothing(
        self, three_nodes: Any, photos: Path, alone: Classifier, tmp_path: Path
    ) -> None:
        killed: list[str] = []

        def kill() -> None:
            nodes = three_nodes.worker_nodes
            doomed = waited_for(lambda: [one for one in nodes if reads(one)])[0]
            three_nodes.remove_node(doomed, allow_graceful=False)
            killed.append(doomed.address)

        model = create(tmp_path / "model")
        report = model.learn(photos, cluster=three_nodes.address, progress=Noting(1, kill))
        assert killed
        three_nodes.add_node(num_cpus=1, node_ip_address=LOOPBACK)
        require_equal(model, alone)
        assert sum(one.images for one in report.classes) == sum(LESSON.values())

    def test_a_lesson_of_one_shard_joins_none(
        self, three_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folders = write_folders(tmp_path / "photos", {0: 6, 1: 4})
        model, progress = create(tmp_path / "model"), Noting()
        with monkeypatch.context() as patch:
            patch.setattr(spread, "joined", None)
            model.learn(folders, cluster=three_nodes.address, progress=progress)
        assert progress.said == [
            "this lesson of 10 images is one shard: it is computed here, without the cluster"
        ]
        with pytest.raises(DafuseError, match=r"no Ray cluster can be reached at 127\.0\.0\.2:1 "):
            model.learn(folders, cluster="127.0.0.2:1")

    @pytest.mark.parametrize("images", [{0: 6, 1: 4}, LESSON])
    def test_a_refused_lesson_leaves_nothing(self, tmp_path: Path, images: dict[int, int]) -> None:
        folders, model = write_folders(tmp_path / "photos", images), tmp_path / "model"
        lesson = ["learn", model, folders, "--device", "cpu", "--cluster", "127.0.0.2:1"]
        ended = dafuse(*lesson, before=with_small_shards)
        assert ended.status == 2
        assert "is a new model" not in ended.err
        assert "no Ray cluster can be reached at 127.0.0.2:1 " in ended.err
        assert not model.exists()

    def test_without_ray_a_lesson_is_refused_before_anything_else(self, tmp_path: Path) -> None:
        lesson = ["learn", tmp_path / "model", tmp_path / "none", "--cluster", "127.0.0.2:1"]
        command = [*dafuse_without("ray"), *map(str, lesson)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.stderr == "dafuse: ray is not installed: pip install 'dafuse[ray]'\n"
        assert not (tmp_path / "model").exists()

    def test_a_copy_in_another_shard_counts_once(
        self, three_nodes: Any, photos: Path, tmp_path: Path
    ) -> None:
        root = tmp_path / "photos"
        shutil.copytree(photos, root)
        first = sorted((root / "class 0").iterdir())[0]
        shutil.copy(first, root / "class 4" / "copy.png")
        shutil.copy(first, root / "class 4" / "copy again.png")
        models = create(tmp_path / "one"), create(tmp_path / "other")
        reports = [
            model.learn(root, cluster=address)
            for model, address in zip(models, (None, three_nodes.address), strict=True)
        ]
        assert reports[0].skipped == reports[1].skipped
        assert len(reports[0].skipped) == 2
        require_equal(*models)

    def test_images_that_no_worker_sees_are_not_skipped_in_silence(
        self,
        three_nodes: Any,
        photos: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        shutil.copytree(photos, tmp_path / "photos")
        monkeypatch.chdir(tmp_path)  # the workers' is another
        model = create(tmp_path / "model")
        with pytest.raises(DafuseError, match=r"the worker on .* does not see .*class 0/.*png"):
            model.learn(Path("/proc/self/cwd/photos"), cluster=three_nodes.address)
        bad = Path("photos", "class 0", "bad.png")
        bad.write_bytes(b"nothing")
        report = model.learn(Path("photos"), cluster=three_nodes.address)
        assert [line.partition(": ")[0] for line in report.skipped] == [str(bad)]

    def test_workers_read_tars_from_a_server(
        self, three_nodes: Any, alone: Classifier, tmp_path: Path
    ) -> None:
        """The same images, in another order, from tars that no worker has on its disk."""
        members = samples(LESSON)
        with serving(tmp_path / "web") as server:
            for number in range(2):
                write_tar(server.root / f"a-{number}.tar", members[number * 60 :][:60])
            write_tar(server.root / "a-2.tar", members[120:])
            model = create(tmp_path / "model")
            model.learn(server.url + "/a-{0..2}.tar", cluster=three_nodes.address)
        require_equal(model, alone)

    def test_a_server_that_is_gone_ends_the_lesson_in_one_line(
        self, three_nodes: Any, tmp_path: Path
    ) -> None:
        with serving(tmp_path / "web") as server:
            write_tar(server.root / "a.tar", samples(LESSON))
            model = create(tmp_path / "model")

            def gone() -> None:
                server.broken_after = 0

            with pytest.raises(DafuseError, match=r"the connection to .*a\.tar was lost"):
                model.learn(
                    f"{server.url}/a.tar", cluster=three_nodes.address, progress=Noting(1, gone)
                )
            assert not model.folder.exists()

    def test_a_driver_that_is_killed_goes_on(
        self, three_nodes: Any, photos: Path, alone: Classifier, tmp_path: Path
    ) -> None:
        """By the command line, and with the shards that the killed process had in flight."""
        model = tmp_path / "model"
        lesson = ["learn", model, photos, "--device", "cpu", "--cluster", three_nodes.address]
        assert dafuse(*lesson, before=killed_at_the_fourth_shard).status == -signal.SIGKILL
        kept = files(model / "unfinished")
        assert len([name for name in kept if name.endswith(".safetensors")]) == 3
        ModelFolder(model).require_claimable()
        ended = dafuse(*lesson, before=with_small_shards)
        assert ended.status == 0
        done = f"begun before: 3 of {SHARDS} shards are done"
        assert done in ended.err
        require_equal(Classifier.open(model, device="cpu"), alone)
        assert not (model / "unfinished").exists()


def test_a_long_lesson_without_a_cluster_goes_on(
    photos: Path, alone: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    lesson = ["learn", model, photos, "--device", "cpu"]
    assert dafuse(*lesson, before=killed_at_the_fourth_shard).status == -signal.SIGKILL
    kept = sorted((model / "unfinished").glob("*.safetensors"))
    assert len(kept) == 3
    kept[1].write_bytes(kept[1].read_bytes()[:-1] + b"?")  # damaged: read again
    read: list[int] = []
    original = Reader.read
    monkeypatch.setattr(
        Reader, "read", lambda self, shard, *rest: read.append(shard.number) or original(
            self, shard, *rest
        )
    )  # fmt: skip
    progress, going_on = Noting(), create(model)
    going_on.learn(photos, progress=progress)
    assert read == [1, 3, 4, 5, 6]
    assert f"begun before: 2 of {SHARDS} shards are done" in progress.said[-1]
    require_equal(going_on, alone)


class TestUnfinished:
    @pytest.fixture
    def begun(self, photos: Path, tmp_path: Path) -> Classifier:
        """A model of one lesson, with another that was stopped."""
        model = create(tmp_path / "model")
        model.learn(*pictures({5: 3, 6: 3}))

        def stop() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.learn(photos, progress=Noting(25, stop))
        assert list((tmp_path / "model" / "unfinished").glob("*.safetensors"))
        return model

    def test_the_ledger_says_what_it_is(self, begun: Classifier) -> None:
        ledger = begun.ledger()
        left = [one for one in ledger.entries if one.file.startswith("unfinished/")]
        assert len(left) > 1
        assert all("did not come to its end" in one.what for one in left)
        assert "feature vectors of some" in "\n".join(ledger.proof())

    @pytest.mark.parametrize("step", ["forget", "rename", "undo", "learn", "another"])
    def test_every_other_step_deletes_it(
        self, begun: Classifier, tmp_path: Path, step: str
    ) -> None:
        top = begun.folder.path / "unfinished"
        if step == "forget":
            begun.forget("class 5", for_good=True)
        elif step == "rename":
            begun.rename("class 5", "five")
        elif step == "learn":
            begun.learn(*pictures({7: 2}, seed=4))
        elif step == "undo":
            begun.learn(*pictures({7: 2}, seed=4))
            begun.undo()
        else:
            before = files(top)
            more = write_folders(tmp_path / "more", {8: 12, 9: 12}, seed=3)
            begun.learn(more)
            assert before
        assert not top.exists()

    def test_a_file_that_changed_is_another_lesson(
        self, begun: Classifier, photos: Path, tmp_path: Path
    ) -> None:
        root = tmp_path / "photos"
        shutil.copytree(photos, root)
        progress = Noting()
        begun.learn(root, progress=progress)
        assert not any("begun before" in line for line in progress.said)


def test_a_result_comes_back_from_its_file_as_it_was(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = []
    original = Reader.read

    def spied(self: Reader, *given: Any) -> Any:
        parts.append(original(self, *given))
        return parts[-1]

    monkeypatch.setattr(Reader, "read", spied)
    create(tmp_path / "model").learn(photos)
    for part in parts:
        again = from_arrays(to_arrays(part))
        for name, value in vars(part).items():
            found = getattr(again, name)
            if isinstance(value, dict):
                assert value.keys() == found.keys()
                assert all(np.array_equal(value[key], found[key]) for key in value)
            else:
                assert np.array_equal(value, found)


def test_a_method_that_trains_has_no_use_for_a_cluster(
    tmp_path: Path, small_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "joined", lambda *_: nullcontext())
    with pytest.raises(DafuseError, match="a cluster is of no use to it: leave out --cluster"):
        create(tmp_path / "model", **QUICK).learn(*pictures({0: 2, 1: 2}), cluster="auto")


@pytest.mark.parametrize("name", ["labels", "classes", "sums/means", "feats", "hashes"])
def test_what_was_kept_and_forged_is_refused_in_one_line(
    photos: Path, alone: Classifier, tmp_path: Path, name: str
) -> None:
    """Its hash fits, and what is in it does not."""

    def stop() -> None:
        raise KeyboardInterrupt

    model = create(tmp_path / "model")
    with pytest.raises(KeyboardInterrupt):
        model.learn(photos, progress=Noting(45, stop))
    for file in (tmp_path / "model" / "unfinished").glob("*.safetensors"):
        arrays = dict(load(file.read_bytes()))
        arrays[name] = arrays[name][:-1].astype(np.float32)
        data = save(arrays)
        file.unlink()
        digest = hashlib.sha256(data).hexdigest()
        file.with_name(f"{file.name[:9]}{digest}.safetensors").write_bytes(data)
    refused = ""
    try:
        model.learn(photos)
    except DafuseError as error:
        refused = str(error)
    if refused:
        assert "is not what dafuse wrote" in refused
    else:  # what did not fit was read again
        require_equal(model, alone)
