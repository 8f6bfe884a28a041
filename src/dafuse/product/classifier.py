"""A classifier that anyone can keep teaching.

from dafuse import Classifier

pets = Classifier.create("pets")
pets.learn("photos/2024")                    # a folder for each class
pets.learn(images, labels)                   # or images in memory: they are not kept
print(pets.predict("cat.jpg")[0].name)
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from dafuse.backbones.extractor import Extractor
from dafuse.backbones.registry import COMPACT
from dafuse.data.dataset import Dataset
from dafuse.data.decoding import AnyImages
from dafuse.data.images import AnyImage, UnreadableImage
from dafuse.errors import DafuseError
from dafuse.methods.options import require_valid
from dafuse.product.folder import ModelFolder
from dafuse.product.objects import load_method, read_to_predict, saying_what_is_wrong
from dafuse.product.predictor import Answering, Predictor, Scores
from dafuse.product.version import BackboneRecord, Version, VersionRef, blank, differences
from dafuse.progress import Progress
from dafuse.taught.contract import Arrays, Teachable, head_of, options_of_lesson
from dafuse.taught.open_extractor import Wanted, open_extractor
from dafuse.taught.table import DEFAULT, find_taught

if TYPE_CHECKING:
    from onnx import ModelProto

    from dafuse.product.export import Exported
    from dafuse.product.ledger import Ledger
    from dafuse.product.steps import Forgotten
    from dafuse.product.summary import LearnReport, Summary


class Classifier(Answering):
    """Classifier that people teach. What it learned is in its folder, as versions.

    `create` or `open` makes one.

    Any number of threads may predict while one teaches: a predictor never changes, and a finished
    step puts another in its place. Steps wait for each other, in one process or several.
    """

    def __init__(self, folder: ModelFolder, version: Version, extractor: Extractor) -> None:
        self.folder, self.extractor = folder, extractor
        self._start = version  # backbone, method and settings, which no step changes
        self._now: tuple[Version, Predictor] | None = None
        self._current: VersionRef | None = None  # what the folder said when the model was read
        self._reading = RLock()

    @classmethod
    def create(
        cls,
        path: str | Path,
        backbone: str | Path = COMPACT,
        *,
        method: str = DEFAULT,
        weights: str | None = None,
        weights_sha256: str | None = None,
        device: str = "auto",
        threads: int | None = None,
        devices: int = 1,
        seed: int = 1993,
        **settings: Any,
    ) -> "Classifier":
        """Make a model without classes. Its first lesson writes its folder.

        Args:
            path: where the model will be: a folder that is not there yet, or empty
            backbone: embedded (the default), small, base, large, a tag of timm, or an .onnx file
            method: how it is taught (`taught.table`); all but lift and simplecil need torch
            weights: a local file with the backbone's weights, .safetensors or exported .onnx
            weights_sha256: what the SHA-256 of the weights must be
            device: auto, cpu, cuda or mps
            threads: how many; default: one for each processor
            devices: how many share out lessons that train (for `dafuse learn`)
            seed: of everything random
            settings: options of the method
        """
        folder = ModelFolder(path)
        if folder.exists():
            raise DafuseError(f"there is a model {path} already: open it, or choose another path")
        folder.require_claimable()
        require_valid(Version, {"seed": seed})
        taught = find_taught(method, settings)
        options = taught.defaults(settings)
        wanted = Wanted.by(taught, method, options)
        extractor = open_extractor(
            backbone, weights, weights_sha256, device, threads, wanted, devices=devices
        )
        record = BackboneRecord.of(extractor)
        return cls(folder, blank(record, method, options, seed), extractor)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        weights: str | None = None,
        device: str = "auto",
        threads: int | None = None,
        devices: int = 1,
    ) -> "Classifier":
        """Open the model in this folder, with the very weights that it was taught with."""
        return cls._opened(ModelFolder(path), weights, device, threads, devices=devices)

    @classmethod
    def merge(
        cls,
        models: "Sequence[str | Path | Classifier]",
        out: str | Path,
        *,
        weights: str | None = None,
        device: str = "auto",
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> "Classifier":
        """Make a model that knows what all of these were taught; they stay as they are."""
        from dafuse.product import steps

        opened: list[Classifier] = []
        for model in models:
            if not isinstance(model, Classifier):
                first = opened[0] if opened else None
                model = cls._opened(ModelFolder(model), weights, device, threads, first)
            opened.append(model)
        parts = [(one.folder, one._read_method()) for one in opened]
        steps.merge(parts, ModelFolder(out), progress)
        return cls._opened(ModelFolder(out), weights, device, threads, opened[0])

    @classmethod
    def _opened(
        cls,
        folder: ModelFolder,
        weights: str | None,
        device: str,
        threads: int | None,
        like: "Classifier | None" = None,
        devices: int = 1,
    ) -> "Classifier":
        """Open the model in this folder; one that was made as `like` shares its network."""
        current, version = folder.read_current(lambda version: version)
        if like is not None and not differences(version, like.version):
            return cls(folder, version, like.extractor)._begun(current)
        with saying_what_is_wrong(folder, version):
            taught, backbone = find_taught(version.method, version.settings), version.backbone
            taught.defaults({**taught.defaults({}), **version.settings})  # refuses what cannot be
            wanted = Wanted.by(taught, version.method, version.settings)
        known = backbone.tag, weights, backbone.sha256
        extractor = open_extractor(*known, device, threads, wanted, backbone.file, devices=devices)
        with saying_what_is_wrong(folder, version):
            backbone.require_size_of(extractor)
        extractor.preprocessing = backbone.preprocessing
        return cls(folder, version, extractor)._begun(current)

    @property
    def version(self) -> Version:
        """The version that predicts, as its file describes it."""
        return self._start if self._now is None else self._now[0]

    @property
    def current(self) -> VersionRef | None:
        """The last step, by number and hash, for `undo` to expect; None before the first.

        Read it before `version`: a step may end in between, and undo then refuses.
        """
        return self._current

    @property
    def classes(self) -> list[str]:
        """Names, in the order of the columns of `probabilities`."""
        return self.version.names

    @property
    def model(self) -> Predictor:
        """The predictor of this version. It never changes."""
        return self._require_taught()[1]

    def _require_taught(self) -> tuple[Version, Predictor]:
        if self._now is None:
            raise DafuseError(f"{self.folder.path} has learned nothing yet: teach it with learn")
        return self._now

    def _begun(self, current: VersionRef) -> "Classifier":
        """Predict by the version that was just read; by another if a step has replaced it."""
        try:
            self._now, self._current = (self._start, self._predicting(self._start)[0]), current
        except (DafuseError, OSError):  # its files may be gone; damage is found again
            self.refresh()
        return self

    def refresh(self) -> None:
        """Read the current version, after another process taught the model."""

        def load(version: Version) -> tuple[Version, Predictor]:
            self._require_same(version)
            return version, self._predicting(version)[0]

        with self._reading:
            current, now = self.folder.read_current(load)
            self._now = now
            self._current = current  # after it, as `current` says

    def follow(self) -> None:
        """Do as `refresh`, if the current version is another one; ignore one that is damaged."""
        with self._reading, suppress(DafuseError, OSError):
            if self.folder.exists() and self.folder.current() != self._current:
                self.refresh()

    def learn(
        self,
        images: AnyImages | Dataset,
        labels: Sequence[str] | np.ndarray | None = None,
        *,
        recognise: bool = True,
        cluster: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> "LearnReport":
        """Learn new classes, and more of known ones; a new version of the model.

        Where every image was taught before, the model stays as it is.

        Args:
            images: a folder with a folder of images for each class; a .csv or .parquet of paths
                and labels; an .npz of pixels and labels; or images, with labels
            labels: the class name of each image
            recognise: leave out images that were taught before, and keep a short hash of each
                that is taught now; else neither
            cluster: of Ray, to read many images: auto or HOST:PORT
            progress: how to show how far it is
            options: for a method that trains: epochs, lr, holdout (the share of each class of 5
                images or more that is held out to test with), flip (also train on mirrored
                images; by default as in the last lesson, and in a first one yes)
        """
        from dafuse.data.own_data import lesson_images  # none of these is needed to predict
        from dafuse.product.lesson import Learner, next_version, teach
        from dafuse.product.seen import Seen
        from dafuse.product.spread import spreading

        progress = progress or Progress()
        chosen = self.lesson_options(options)
        dataset = lesson_images(images, labels)
        asked = dataset, self._start, self.extractor, cluster, progress
        with spreading(*asked) as spread, self.folder.changing(progress):
            version, digest = self._built_on()
            if find_taught(version.method, version.settings).trains:
                chosen = {"flip": version.flip, **chosen}
            with saying_what_is_wrong(self.folder, version):
                seen = Seen.of(self.folder, version) if recognise else None
            how = partial(self.blank_method, version), partial(self._method, version)
            learner = Learner(self.folder, version, self.extractor, *how, seen, digest)
            ended = teach(dataset, learner, chosen, spread, progress)
            if ended.lesson is None:
                return ended.report
            after, arrays = next_version(ended)
            predictor = self._predictor(after, ended.found.method, arrays)  # before it counts
            self.folder.publish(after)
            with self._reading:
                self._now = after, predictor
                self._current = self.folder.current()  # after it, as `current` says
        return ended.report

    @property
    def threshold(self) -> float:
        return self.model.threshold

    def each_scores(self, images: Sequence[AnyImage]) -> Iterator[Scores | UnreadableImage]:
        return self.model.each_scores(images)

    def features(self, images: AnyImages) -> np.ndarray:
        """Return float32 [N, F], the features that tell classes apart."""
        return self.model.features(images)

    def forget(
        self, *names: str, for_good: bool = False, progress: Progress | None = None
    ) -> "Forgotten":
        """Remove classes and their records; for good, also from what `undo` can bring back."""
        from dafuse.product import steps

        forgotten = steps.forget(self.folder, list(names), self._method, for_good, progress)
        self.refresh()
        return forgotten

    def trim(self, keep: int) -> list[int]:
        """Delete all but this many of the newest versions; return the numbers of those deleted."""
        from dafuse.product import steps

        return steps.trim(self.folder, keep)

    def rename(self, old: str, new: str, progress: Progress | None = None) -> None:
        from dafuse.product import steps

        steps.rename(self.folder, old, new, progress)
        self.refresh()

    def undo(self, progress: Progress | None = None, expected: VersionRef | None = None) -> Version:
        """Go back to the version before the last step; return the version undone.

        Args:
            progress: how to show that it waits
            expected: a `current`, so that no other step is undone; default: whatever it is
        """
        from dafuse.product import steps

        undone, _ = steps.undo(self.folder, progress, expected)
        self.refresh()
        return undone

    def info(self) -> "Summary":
        from dafuse.product.summary import summarise

        return summarise(self.folder)

    def ledger(self) -> "Ledger":
        """List every file and tensor of the model, and what it says about the images."""
        from dafuse.product.ledger import make_ledger

        return make_ledger(self.folder)

    def export(self, file: str | Path, int8: bool = False) -> "Exported":
        """Write one .onnx file that predicts without dafuse, of float32 or int8 weights.

        It is compared with the model, and not written if it computes something else.
        """
        from dafuse.product.export import export, require_exportable

        require_exportable(Path(file).expanduser())
        self._require_taught()

        def load(version: Version) -> tuple[Predictor, Version, "ModelProto"]:
            self._require_same(version)
            predictor, method, arrays = self._predicting(version)
            return predictor, version, method.graph(arrays)

        return export(*self.folder.read(load), file, int8)

    def _built_on(self) -> tuple[Version, str]:
        """Return the version that the next step builds on, and the hash of its file."""
        if not self.folder.exists():
            self.folder.require_claimable()
            if self.version.number:
                raise DafuseError(
                    f"the model {self.folder.path} is gone: bring its folder back, or create a "
                    "new model"
                )
            return self._start, ""
        current = self.folder.current()
        version = self.folder.version(current)
        self._require_same(version)
        return version.seen_by(self.extractor), current.sha256

    def _require_same(self, version: Version) -> None:
        """Refuse another model in this folder; another process may only have taught this one."""
        for part in differences(version, self._start):
            raise DafuseError(
                f"{self.folder.path} is now another model, with another {part}: open it again"
            )

    def lesson_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options that have a value; refuse what the method cannot take."""
        method, settings = self._start.method, self._start.settings
        return options_of_lesson(method, find_taught(method, settings).takes(settings), options)

    def blank_method(self, version: Version) -> Teachable:
        """Return the method of this version as it is before its first lesson."""
        taught = find_taught(version.method, version.settings)
        return taught(self.extractor, version.settings, version.seed)

    def _method(self, version: Version) -> Teachable:
        """Open the method, with all that it has learned."""
        method = self.blank_method(version)
        if version.number:
            with saying_what_is_wrong(self.folder, version):
                load_method(self.folder, version, method)
        return method

    def _predicting(self, version: Version) -> tuple[Predictor, Teachable, Arrays]:
        with saying_what_is_wrong(self.folder, version):
            method = self.blank_method(version)
            arrays = read_to_predict(self.folder, version, method)
            return self._predictor(version, method, arrays), method, arrays

    def _read_method(self) -> tuple[Version, Teachable]:
        return self.folder.read(lambda version: (version, self._method(version)))

    def _predictor(self, version: Version, method: Teachable, arrays: Arrays) -> Predictor:
        head = head_of(arrays, version.numbers)
        looks, threads = self.extractor.preprocessing, self.extractor.threads
        return Predictor(version.names, method.encoder(arrays), head, looks, threads)
