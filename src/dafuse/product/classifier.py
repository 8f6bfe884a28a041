"""A classifier that anyone can keep teaching.

from dafuse import Classifier

pets = Classifier.create("pets")
pets.learn("photos/2024")                    # a folder for each class
pets.learn(images, labels)                   # or images in memory: they are not kept
print(pets.predict("cat.jpg")[0].name)
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from dafuse.data.batches import Loader
from dafuse.data.dataset import Augmentation
from dafuse.data.images import UnreadableImage
from dafuse.data.pictures import Picture, Pictures, as_list, require_read
from dafuse.data.preprocessing import Preprocessing
from dafuse.engine.devices import launch
from dafuse.engine.training import Trainer
from dafuse.errors import DafuseError
from dafuse.methods.registry import with_defaults
from dafuse.product import steps
from dafuse.product.evaluation import Evaluation, evaluate
from dafuse.product.export import Exported, export
from dafuse.product.folder import ModelFolder
from dafuse.product.learning import next_version, teach
from dafuse.product.ledger import Ledger, make_ledger
from dafuse.product.lessons import plan
from dafuse.product.model import Model
from dafuse.product.pictures import images_to_test, lesson_images
from dafuse.product.prediction import Prediction
from dafuse.product.reports import LearnReport
from dafuse.product.state import put_state, read_state
from dafuse.product.summary import Summary, summarise
from dafuse.product.teachable import TeachableDAF
from dafuse.product.version import BackboneRecord, Parent, Version, blank
from dafuse.progress import Progress
from dafuse.vit.backbone import ViT
from dafuse.vit.load import load_backbone
from dafuse.vit.weights import COMPACT


class Classifier:
    """Made by `create` or `open`. What it learned is in its folder, as versions.

    Any number of threads may predict while one teaches: what predicts is never changed, and a
    finished step puts another in its place. Steps wait for each other, in one process or several.
    """

    def __init__(self, folder: ModelFolder, version: Version, vit: ViT, fabric: Fabric) -> None:
        self.folder, self.vit = folder, vit.to(fabric.device)
        self._fabric = fabric
        self._start = version  # backbone and settings, which no step changes
        self._model: Model | None = None
        self._head: Parent | None = None  # what the folder said when the model was read
        self._reading = RLock()
        if version.number:
            self.refresh()

    @classmethod
    def create(
        cls,
        path: str | Path,
        backbone: str = COMPACT,
        *,
        weights: str | None = None,
        device: str = "auto",
        seed: int = 1993,
        **settings: Any,
    ) -> "Classifier":
        """A new model that knows nothing yet. Its folder is written by its first lesson.

        Args:
            path: where the model will be: a folder that is not there yet, or empty
            backbone: exact timm tag of the frozen ViT; the default is inside the package
            weights: a local .safetensors file with the backbone's weights
            device: auto, cpu, cuda or mps
            seed: of everything random
            settings: options of the method, such as epochs; dafuse run --method daf --help
        """
        folder = ModelFolder(path)
        if folder.exists():
            raise DafuseError(f"there is a model {path} already: open it, or choose another path")
        folder.require_claimable()
        options = with_defaults("daf", {"memory_dtype": "float16", **settings})
        vit = load_backbone(backbone, weights)
        looks = asdict(vit.preprocessing)
        record = BackboneRecord(
            vit.tag, vit.sha256, **{**looks, "mean": list(looks["mean"]), "std": list(looks["std"])}
        )
        return cls(folder, blank(record, options, seed), vit, launch(device, "fp32", False))

    @classmethod
    def open(
        cls, path: str | Path, *, weights: str | None = None, device: str = "auto"
    ) -> "Classifier":
        """The model in this folder, with its backbone: the very weights it was taught with."""
        folder = ModelFolder(path)
        version = folder.read(lambda version: version)
        backbone = version.backbone
        vit = load_backbone(backbone.tag, weights, backbone.sha256)
        vit.preprocessing = Preprocessing(
            backbone.size, tuple(backbone.mean), tuple(backbone.std), backbone.resize
        )
        return cls(folder, version, vit, launch(device, "fp32", False))

    @property
    def version(self) -> Version:
        """What is known of the version that predicts."""
        return self._start if self._model is None else self._model.version

    @property
    def head(self) -> Parent | None:
        """What `undo` can be told to expect: the last step, by number and hash; None: no step yet.

        Read it before `version`: in between, a step may end, and then undo refuses.
        """
        return self._head

    @property
    def classes(self) -> list[str]:
        """Names, in the order of the columns of `probabilities`."""
        return self.version.names

    @property
    def model(self) -> Model:
        """What predicts now: features, logits and answers of images. It never changes."""
        if self._model is None:
            raise DafuseError(f"{self.folder.path} has learned nothing yet: teach it with learn")
        return self._model

    def refresh(self) -> None:
        """Become what the folder says now, after another process taught it."""

        def load(version: Version) -> Model:
            self._require_same(version)
            try:
                state = read_state(self.folder, version)
                return Model(self.vit, self._fabric.device, version, state)
            except torch.OutOfMemoryError:
                raise
            except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
                file = self.folder.version_file(version.number)
                raise DafuseError(f"{file} is not what dafuse writes: {error!r}") from error

        with self._reading:
            self.folder.require()
            head = self.folder.head()
            self._model = self.folder.read(load)
            self._head = head

    def follow(self) -> None:
        """As `refresh`, if the folder says something new; what cannot be read changes nothing."""
        with self._reading, suppress(DafuseError, OSError):
            if self.folder.exists() and self.folder.head() != self._head:
                self.refresh()

    def learn(
        self,
        images: Pictures,
        labels: Sequence[str] | np.ndarray | None = None,
        *,
        holdout: float = 0.1,
        epochs: int | None = None,
        lr: float | None = None,
        flip: bool | None = None,
        progress: Progress | None = None,
    ) -> LearnReport:
        """Learn new classes, and more of known ones; a new version of the model.

        Args:
            images: a folder with a folder of images for each class; or images, with labels
            labels: the class name of each image
            holdout: share of each class of 5 images or more that is kept back, to test with
            epochs: another number of passes over the images than the model's setting
            lr: another learning rate than the model's setting
            flip: also train on mirrored images; not good for letters, arrows and the like.
                Default: as in the model's last lesson; in a first one, yes
            progress: how to show how far it is
        """
        progress = progress or Progress()
        dataset = lesson_images(images, labels)
        loader = Loader(dataset, self.vit.preprocessing, self._fabric.device, progress)
        options = {"epochs": epochs, "lr": lr}
        given = {name: value for name, value in options.items() if value is not None}
        with self.folder.changing(progress):
            version, digest = self._current()
            flip = version.flip if flip is None else flip
            if not flip:
                loader.dataset = replace(loader.dataset, augmentation=Augmentation(flip=0.0))
            lesson = plan(version, loader.dataset, holdout)
            trainer = Trainer(self.vit, loader, self._fabric, version.seed, progress)
            method = self._method(trainer, version, given)
            learned = teach(lesson, method, trainer, version)
            objects = put_state(self.folder, learned.state)
            after = next_version(version, digest, lesson, loader, learned, objects)
            after.step.update(holdout=holdout, flip=flip, **given)
            self.folder.publish(after)
            with self._reading:
                self._model = Model(self.vit, self._fabric.device, after, learned.state)
                self._head = self.folder.head()  # after it, as in refresh
        return learned.report

    def predict(
        self, images: Pictures, top: int = 1, threshold: float | None = None
    ) -> list[Prediction]:
        """What each image is taken for.

        Args:
            images: paths, Pillow images, uint8 arrays [H, W, 3], bytes of files; one or many
            top: how many classes are named
            threshold: familiarity below which the answer is "unknown"; the default is the model's
                own, and -inf never answers so
        """
        given = as_list(images)
        return require_read(given, self.answers(given, top, threshold))

    def answers(
        self, images: Sequence[Picture], top: int = 1, threshold: float | None = None
    ) -> Iterator[Prediction | UnreadableImage]:
        """As `predict`, one by one, where an image that cannot be read answers with the reason."""
        return self.model.answers(images, top, threshold)

    def probabilities(self, images: Pictures) -> np.ndarray:
        """[N, C], in the order of `classes`."""
        model, given = self.model, as_list(images)
        logits = require_read(given, model.each_logits(given))
        if not logits:
            return np.zeros((0, len(model.names)))
        return model.probabilities(torch.stack(logits)).numpy()

    def evaluate(self, root: str | Path, progress: Progress | None = None) -> Evaluation:
        """Test on a folder of class folders, of which none should have been learned from."""
        model = self.model
        return evaluate(model.names, model.answers, images_to_test(root), progress or Progress())

    def forget(self, *names: str, for_good: bool = False) -> steps.Forgotten:
        """Remove classes and their statistics; for good, also from what `undo` can bring back."""
        forgotten = steps.forget(self.folder, list(names), for_good)
        self.refresh()
        return forgotten

    def rename(self, old: str, new: str) -> None:
        steps.rename(self.folder, old, new)
        self.refresh()

    def undo(self, progress: Progress | None = None, expected: Parent | None = None) -> Version:
        """Go back to the version before the last step; the version undone.

        Args:
            progress: how to show that it waits
            expected: a `head`, so that no other step than that is undone; default: whatever it is
        """
        undone, _ = steps.undo(self.folder, progress, expected)
        self.refresh()
        return undone

    def info(self) -> Summary:
        return summarise(self.folder)

    def ledger(self) -> Ledger:
        """Every file and tensor that is kept, and what it says about the images."""
        return make_ledger(self.folder)

    def export(self, file: str | Path, int8: bool = False) -> Exported:
        """One file that predicts without dafuse: .onnx, of int8 weights if so asked, or .pt2.

        It is compared with the model, and not written if it computes something else.
        """
        return export(self.model, file, int8)

    def _current(self) -> tuple[Version, str]:
        """What the next step builds on, whoever made it, and the hash of its file."""
        if not self.folder.exists():
            return self._start, ""
        head = self.folder.head()
        version = self.folder.version(head)
        self._require_same(version)
        return version, head.sha256

    def _require_same(self, version: Version) -> None:
        """Another process may have taught the model, but not made another one of it."""
        for part in ("backbone", "settings", "seed"):
            if getattr(version, part) != getattr(self._start, part):
                raise DafuseError(
                    f"{self.folder.path} is now another model, with another {part}: open it again"
                )

    def _method(self, trainer: Trainer, version: Version, given: dict[str, Any]) -> TeachableDAF:
        method = TeachableDAF(trainer=trainer, **{**version.settings, **given})
        if version.number:
            state = read_state(self.folder, version)
            method.load_state({name: tensor.to(trainer.device) for name, tensor in state.items()})
            method.images = [record.images for record in version.classes]
        return method
