"""`dafuse learn MODEL SOURCE`: make a model, or teach it more."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dafuse.backbones.registry import next_better
from dafuse.cluster import require_possible
from dafuse.commands.open_model import (
    ON_ONE_DEVICE,
    BackboneName,
    LessonNetwork,
    MethodName,
    open_or_create,
)
from dafuse.commands.options import Cluster, Source
from dafuse.errors import DafuseError
from dafuse.processes import rank_here, started_on
from dafuse.taught.table import find_taught
from dafuse.wording import shown_lines

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier
    from dafuse.product.version import Version


def learn(
    model: str,
    source: Source,
    /,
    *,
    backbone: BackboneName = None,
    method: MethodName = None,
    tune: bool = False,
    settings: Annotated[Sequence[str], Parameter(name="--set")] = (),
    recognise: bool = True,
    weights_sha256: str | None = None,
    seed: int | None = None,
    holdout: float | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    flip: bool | None = None,
    cluster: Cluster = None,
    network: LessonNetwork = ON_ONE_DEVICE,
) -> None:
    """Learn the classes of a folder: new ones, and more about those that the model knows.

    Images that were taught before are skipped, so that one folder may grow. No image is kept.
    Ctrl-C leaves the model as it was.

    Args:
        model: the model's folder; made if it is not there
        tune: of a new model: fit the network to its images by an adapter, trained in the first
            lesson (in each of the first five, for lift: --set tune=each); for lift, layup and
            anacp; needs dafuse[torch]
        settings: of a new model: NAME=VALUE is a setting of its method, such as rank=8; may be
            given several times
        recognise: skip images that were taught before, and keep hashes of this lesson's images to
            recognise them by; --no-recognise does neither
        weights_sha256: of a new model: the SHA-256 of its weights; needed to accept a file that
            dafuse does not know
        seed: of a new model: decides everything random; 1993 if left out
        holdout: for a method that trains: share of each class of 5 images or more that is held out
            to test with; 0.1 if left out
        epochs: for a method that trains: number of epochs; 20 if left out
        lr: for a method that trains: learning rate; 0.01 if left out
        flip: for a method that trains: also train on mirrored images; --no-flip suits letters,
            arrows and the like. If left out: as in the last lesson; in the first lesson, yes
    """
    from dafuse.commands.change import ctrl_c_tells
    from dafuse.data.own_data import lesson_images
    from dafuse.engine.display import shown_progress
    from dafuse.product.spread import cluster_for

    network = replace(network, devices=_devices(network.devices))
    with ctrl_c_tells(model):
        with shown_progress() as progress, ExitStack() as shared:
            if cluster is not None:
                require_possible(cluster)
            lesson = lesson_images(source, None)  # what is wrong with it is said first
            new = {"backbone": backbone, "method": method, "seed": seed}
            made_with = _settings(settings, tune)
            classifier = open_or_create(model, network, made_with, weights_sha256, **new)
            options: dict[str, Any] = {"holdout": holdout, "epochs": epochs, "lr": lr, "flip": flip}
            classifier.lesson_options(options)  # so is what is wrong with these
            if network.devices > 1:
                if rank_here():
                    _follow(classifier)
                    return
                shared.enter_context(_several(classifier, network.devices))
            known = lesson, classifier.version, classifier.extractor
            cluster = shared.enter_context(cluster_for(*known, cluster, progress))
            if not classifier.version.number:
                with classifier.folder.changing(progress):  # else it may never become a model
                    progress.say(_introduced(model, classifier.version))
            report = classifier.learn(
                lesson, recognise=recognise, cluster=cluster, progress=progress, **options
            )
        print(shown_lines(report.lines()))


def _devices(asked: int) -> int:
    """Return the number of devices of this machine, as torchrun started their processes if so."""
    devices, nodes = started_on(asked, 1)
    if nodes > 1:
        raise DafuseError("a lesson is learned on one machine: start torchrun with --nnodes 1")
    return devices


def _several(classifier: "Classifier", devices: int) -> AbstractContextManager[None]:
    """Share a lesson among several devices; refuse where nothing is trained."""
    version = classifier.version
    if not find_taught(version.method, version.settings).trains:
        raise DafuseError(
            f"--devices {devices} shares out training, and this model's method, {version.method}, "
            "trains nothing: leave it out, or make a new model with --tune; to compute features on "
            "several machines or in several processes, use --cluster"
        )
    from dafuse.taught.several_devices import several

    extractor: Any = classifier.extractor  # of torch, as all that train need
    return several(extractor)


def _follow(classifier: "Classifier") -> None:
    """Do this process's share of the lesson that the first one tells."""
    from dafuse.taught.several_devices import follow

    version, extractor = classifier.version, classifier.extractor
    shared: Any = extractor
    follow(shared, version.method, version.settings, version.seed)


def _settings(texts: Sequence[str], tune: bool) -> dict[str, Any]:
    """Return settings of a method, as --set and --tune give them."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise DafuseError(f"--set takes NAME=VALUE, such as rank=8, not {text!r}")
        try:
            found[name] = json.loads(value)
        except RecursionError:
            raise DafuseError(f"--set {name}: its value is nested too deeply") from None
        except ValueError:  # a word
            found[name] = value
    return found | ({"tune": "first"} if tune else {})


def _introduced(model: str, version: "Version") -> str:
    """Name the network of a new model, and the next better one."""
    network = version.backbone
    line = (
        f"{model} is a new model: method {version.method}, network {network.tag}, which looks at "
        f"images of {network.size} x {network.size} pixels"
    )
    if better := next_better(network.tag):
        line += f"; the next better one is --backbone {better} (dafuse list backbones)"
    return line
