"""`lift` with few images, beside the usual classifiers: a grid of numbers of classes and images.

There is no stream: the features of all images are computed once. A cell draws some classes and some
images of each by a seed, fits every classifier on them, and tests it on all test images of its
classes. The usual classifiers get the last block's CLS token, as is common; `lift` its own depths.

    from dafuse.engine.config import RunConfig
    from dafuse.experiments.few_images import FewImages

    asked = FewImages.asked(RunConfig(data={"name": "cifar100"}), seeds=(1993, 1994), out="runs")
    asked.make()    # started again, it goes on after the last finished cell
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dafuse.backbones.depths import place_of
from dafuse.backbones.network import Network
from dafuse.engine.config import RunConfig
from dafuse.engine.provenance import compared_inputs, provenance
from dafuse.engine.run import Bench, prepare, resolved
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.experiments.common_heads import COMMON, require_sklearn
from dafuse.experiments.guess import Guess
from dafuse.files import locked, make_folder
from dafuse.heads.classifier import ClosedForm
from dafuse.heads.cosine import class_sums, cosine_logits
from dafuse.heads.lifting import Lift
from dafuse.heads.sums import pooled
from dafuse.methods.lift import LIFT
from dafuse.methods.lift_parts import HeadName, kinds_of, lift_of
from dafuse.progress import Progress
from dafuse.report.measured_few_images import FILE, OWN, MeasuredCell, MeasuredCells, read_cells
from dafuse.sealed import write_sealed
from dafuse.seeds import numpy_generator

CLASSES = (5, 10, 50, 100, 200)
IMAGES = (1, 2, 5, 10, 50, 500)  # of each class
HEADS: dict[str, HeadName] = {OWN: LIFT.head, f"{OWN}, head auto": "auto"}
Cell = tuple[int, int, int]  # classes, images of each, seed


@dataclass
class Features:
    """Features of some images on one device, and their labels."""

    feats_NF: Tensor
    labels_N: np.ndarray

    def of(self, classes: np.ndarray, rows: np.ndarray) -> "Features":
        """Return these rows, with labels as positions among the classes."""
        position = np.full(int(self.labels_N.max()) + 1, -1)
        position[classes] = np.arange(len(classes))
        where = torch.from_numpy(rows).to(self.feats_NF.device)
        return Features(self.feats_NF[where], position[self.labels_N[rows]])


def cell(train: Features, test: Features, last: slice, lift: Lift) -> dict[str, float | None]:
    """Return the accuracy of each classifier on the test images; None if it cannot be fitted.

    Args:
        train: images of the classes 0..C-1, the only ones that a classifier learns from
        test: images of the same classes
        last: the columns of the last block's CLS token
        lift: the map from the features to those that `lift` sums
    """
    accuracy: dict[str, float | None] = {"nearest mean": _nearest_mean(train, test, last)}
    plain = [feats[:, last].double().cpu().numpy() for feats in (train.feats_NF, test.feats_NF)]
    for name, fit in COMMON.items():
        predict = fit(plain[0], train.labels_N)
        accuracy[name] = predict and float((predict(plain[1]) == test.labels_N).mean())
    for name, head in HEADS.items():
        accuracy[name] = _lifted(train, test, lift, head)
    return accuracy


def _nearest_mean(train: Features, test: Features, last: slice) -> float:
    """Classify by the nearest mean by cosine, as SimpleCIL does."""
    labels_N = torch.from_numpy(train.labels_N).to(train.feats_NF.device)
    weights_CD = class_sums(train.feats_NF[:, last], labels_N, int(train.labels_N.max()) + 1)
    return _right(cosine_logits(test.feats_NF[:, last], weights_CD.to(test.feats_NF.dtype)), test)


def _lifted(train: Features, test: Features, lift: Lift, head: HeadName) -> float:
    """Learn one task and predict as `methods.lift` does at its defaults, without training."""
    device = train.feats_NF.device
    sums = pooled(lift.width, train.feats_NF[:0, 0])
    like = train.feats_NF[:0, 0]
    kinds, precision = kinds_of(head), _usual("precision")
    solved = ClosedForm(lift, sums, kinds, None, precision, like, tokens_M=lift.tokens_M)
    solved.learn(train.feats_NF, torch.from_numpy(train.labels_N).to(device))
    return _right(solved.logits(test.feats_NF), test)


def _right(scores_NC: Tensor, test: Features) -> float:
    return float((scores_NC.argmax(1).cpu().numpy() == test.labels_N).mean())


def cells(
    labels_N: np.ndarray, classes: Sequence[int], images: Sequence[int], seeds: Sequence[int]
) -> list[Cell]:
    """Return the cells that the training images allow; one that takes all is drawn once."""
    counts_C = np.bincount(labels_N)
    possible = []
    for count in classes:
        for each in images:
            enough = counts_C[counts_C >= each]
            if len(enough) >= count:
                everything = len(enough) == count and enough.max() == each
                possible += [(count, each, seed) for seed in seeds[: 1 if everything else None]]
    return possible


def draw(labels_N: np.ndarray, wanted: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Draw classes with enough images, and images of them; larger draws contain smaller ones."""
    count, images, seed = wanted
    counts_C = np.bincount(labels_N)
    mixed = numpy_generator(seed, "few images", "classes").permutation(len(counts_C))
    classes = mixed[counts_C[mixed] >= images][:count]
    rows = [
        numpy_generator(seed, "few images", int(label)).permutation(
            np.flatnonzero(labels_N == label)
        )[:images]
        for label in classes
    ]
    return classes, np.concatenate(rows)


@dataclass
class FewImages:
    """A step of an experiment: all its cells, from one pass over the images."""

    config: RunConfig  # data, backbone and device; the method is `lift` at its defaults
    seeds: tuple[int, ...]
    folder: Path
    classes: tuple[int, ...] = CLASSES
    images: tuple[int, ...] = IMAGES
    label: str = "few images"

    @classmethod
    def asked(cls, base: RunConfig, seeds: Sequence[int], out: str | Path) -> "FewImages":
        """Make the step in the folder that its configuration names; more seeds go on in it."""
        alike = resolved(
            replace(base, method={"name": "lift"}, stream="tasks", increment=1, order="natural")
        )
        name = f"few-images-{Path(alike.data['name']).name}-{replace(alike, seed=0).hash()[:8]}"
        distinct = tuple(dict.fromkeys(seeds))
        return cls(replace(alike, seed=distinct[0]), distinct, Path(out) / name)

    def finished(self) -> bool:
        return self.state() == "finished"

    def state(self) -> str:
        try:
            results = read_cells(self.folder)
        except DafuseError:
            return "damaged"
        if results is None:
            return "to do"
        planned = set(self._cells(np.repeat(np.arange(len(results.counts)), results.counts)))
        left = len(planned - _done(results))
        return f"{len(planned) - left} of {len(planned)} cells" if left else "finished"

    def how(self) -> str:
        return f"measures {len(self.classes) * len(self.images)} cells at most, each by each seed"

    def guessed(self, guess: Guess) -> float:
        """Return the seconds of the pass over all images, without the fits of the classifiers."""
        return guess.of_features()

    def make(self, progress: Progress | None = None, bench: Bench | None = None) -> None:
        """Measure the missing cells, and save each when it is finished."""
        require_sklearn()
        progress = progress or Progress()
        make_folder(self.folder)
        with locked(self.folder / ".lock", self._refuse):
            bench = bench or prepare(self.config, progress)
            trainer = Trainer(bench.network, bench.loader, bench.fabric, self.config.seed, progress)
            results = self._begun(provenance(bench.network, bench.loader, trainer.device), bench)
            dataset = bench.loader.dataset
            if len(np.unique(dataset.test.labels)) < len(dataset.classes):
                raise DafuseError("some class has no test image, so nothing can be compared")
            wanted = self._cells(dataset.train.labels)
            if not wanted:
                raise DafuseError(
                    f"the smallest cell needs {min(self.classes)} classes, but "
                    f"{dataset.name} has {len(dataset.classes)}: take data with more classes"
                )
            left = [one for one in wanted if one not in _done(results)]
            if not left:
                return
            train, test = self._features(trainer, bench)
            with progress.bar("cells", len(wanted)) as bar:
                bar.advance(len(wanted) - len(left))
                for one in _measured(bench.network, train, test, left):
                    results.cells.append(one)
                    write_sealed(self.folder / FILE, results.as_json(), self.folder)
                    bar.advance(note=f"{one.classes} classes, {one.images} images")

    def _cells(self, labels_N: np.ndarray) -> list[Cell]:
        return cells(labels_N, self.classes, self.images, self.seeds)

    def _begun(self, origin: dict[str, Any], bench: Bench) -> MeasuredCells:
        """Return the results so far, if images and weights are the same, or an empty record."""
        results = read_cells(self.folder)
        if results is None:
            counts = np.bincount(bench.loader.dataset.train.labels).tolist()
            return MeasuredCells(self.config.asked(), origin, counts)
        for what, before, now in compared_inputs(results.provenance, origin):
            if before != now:
                raise DafuseError(
                    f"{self.folder} was measured with other {what}: delete it to measure again"
                )
        return results

    def _features(self, trainer: Trainer, bench: Bench) -> tuple[Features, Features]:
        """Return the features of all training images, and of all test images."""
        data, depths = bench.loader.dataset, _usual("features")
        train, test = (
            Features(trainer.features(part, None, depths=depths)[0], part.labels)
            for part in (data.train, data.test)
        )
        return train, test

    def _refuse(self) -> None:
        raise DafuseError(f"another process is measuring in {self.folder}")


def _measured(
    network: Network, train: Features, test: Features, wanted: Sequence[Cell]
) -> Iterator[MeasuredCell]:
    depths = _usual("features")
    (whole,) = network.parts("last")
    last = place_of(whole, network.parts(depths))
    for one in wanted:
        start = time.perf_counter()
        classes, rows = draw(train.labels_N, one)
        lift = lift_of(network, depths, _usual("width"), one[2], train.feats_NF[:0, 0])
        tested = np.flatnonzero(np.isin(test.labels_N, classes))
        accuracy = cell(train.of(classes, rows), test.of(classes, tested), last, lift)
        yield MeasuredCell(*one, len(tested), accuracy, time.perf_counter() - start)


def _done(results: MeasuredCells) -> set[Cell]:
    return {(one.classes, one.images, one.seed) for one in results.cells}


def _usual(option: str) -> Any:
    """Return the default of an option of `lift`."""
    return getattr(LIFT, option)
