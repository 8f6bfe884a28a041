"""A benchmark run: learn each task of a stream, test on all classes seen, survive anything."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_fabric import Fabric
from torch import Tensor

from dafuse.backbones.backbone import in_words, require_offered
from dafuse.backbones.load import build_backbone, with_weights
from dafuse.backbones.network import Network
from dafuse.backbones.registry import tag_named
from dafuse.data import registry as sources
from dafuse.data.batches import Loader
from dafuse.data.dataset import Dataset
from dafuse.data.registry import open_dataset
from dafuse.data.stream import Stream, Task
from dafuse.engine.config import RunConfig, split_name
from dafuse.engine.devices import launch
from dafuse.engine.display import LoggedProgress
from dafuse.engine.evaluate import TaskEvaluation, evaluate
from dafuse.engine.folder import Checkpoint, RunFolder, UnseenFolder
from dafuse.engine.provenance import provenance, versions
from dafuse.engine.ranks import Ranks, saying_that_one_ended
from dafuse.engine.replay import open_record, require_same_inputs
from dafuse.engine.results import Declared, FinishedTask, Results
from dafuse.engine.streams import learn_or_observe, make_stream, require_possible
from dafuse.engine.trainer import Trainer
from dafuse.errors import DafuseError
from dafuse.methods import registry as methods
from dafuse.methods.contract import Method
from dafuse.methods.options import Options
from dafuse.methods.registry import find_method
from dafuse.processes import started_on
from dafuse.progress import Progress

if TYPE_CHECKING:
    from dafuse.engine.run_shards import SharedImages

GO_ON = "the same command goes on from the last finished task"


@dataclass
class Bench:
    """The device, the network and the decoded data, which several runs can share."""

    fabric: Fabric
    network: Network
    loader: Loader


def prepare(
    config: RunConfig, progress: Progress | None = None, fabric: Fabric | None = None
) -> Bench:
    """Open everything that a run needs; all errors in its input are raised here.

    The processes of a run on several devices are connected from here on.
    """
    progress = progress or Progress()
    require_possible(config)
    fabric = fabric or launch(config.device, config.precision, config.deterministic)
    ranks = Ranks(fabric)

    def open_inputs() -> tuple[Network, Dataset]:
        network = build_backbone(config.backbone, config.normalize)
        require_suitable(config, network)  # before its weights are fetched and images are read
        name, options = split_name(config.data)
        dataset = open_dataset(name, **options)
        with_weights(network, config.weights, config.weights_sha256, progress)
        make_stream(config, dataset)  # its errors come before the decoding
        return network, dataset

    if ranks.on_this_machine < ranks.count and ranks.is_first:
        progress.say(f"waiting for the {ranks.count} processes of all machines")
    network, dataset = ranks.begin(open_inputs)
    memory = None if config.memory_gb is None else int(config.memory_gb * 2**30)
    limits = ranks.memory_for_images(memory), ranks.workers(config.workers)
    with ranks.together():
        loader = Loader(dataset, network.preprocessing, fabric.device, progress, *limits)
    return Bench(fabric, network, loader)


def require_suitable(config: RunConfig, network: Network) -> None:
    """Refuse a method and a network that cannot work together."""
    name, options = split_name(config.method)
    need = find_method(name).needs_of(options)
    require_offered(in_words(name, options), need, network.tag, network.offers)


def resolved(config: RunConfig) -> RunConfig:
    """Fill in every default of the configuration, as the command line would."""
    require_possible(config)
    name, options = split_name(config.method)
    method = {"name": name, **methods.checked_options(name, options)}
    name, options = split_name(config.data)
    if config.backbone.lower().endswith(".onnx"):
        raise DafuseError(
            f"a run needs the tag of a network of timm, and {config.backbone} is an exported one, "
            "which is for dafuse learn"
        )
    backbone = tag_named(config.backbone)
    return replace(
        config, method=method, data=sources.with_defaults(name, options), backbone=backbone
    )


def run(
    config: RunConfig,
    progress: Progress | None = None,
    bench: Bench | None = None,
    shards: "SharedImages | None" = None,  # of a cluster that computes features and answers
) -> Path:
    """Run to the end, from where an earlier start of this run stopped; return its folder."""
    config = resolved(config)
    step = "task" if config.stream == "tasks" else "point"
    fabric = launch_for(config) if bench is None else bench.fabric
    ranks = Ranks(fabric)
    own = RunFolder(config.folder()) if ranks.is_first else UnseenFolder(config.folder())
    with saying_that_one_ended(ranks, GO_ON), own.open(config.asked(), config.hash()) as folder:
        progress = progress or Progress()
        if ranks.is_first:
            progress = LoggedProgress(progress, folder.path / "log.txt")
        done = folder.latest()
        if _is_finished(done) and not ranks.are_awaited:
            progress.say(f"{folder.path} is finished; nothing to compute")
            return folder.path
        try:
            bench = bench or prepare(config, progress, fabric)
            require_suitable(config, bench.network)  # it may be shared by runs of other methods
            trainer = Trainer(
                bench.network, bench.loader, bench.fabric, config.seed, progress, config.compiled
            )
            trainer.shards = shards
            with ranks.together():
                record = open_record(config, folder.path, ranks)
            name, options = split_name(config.method)
            method = find_method(name)(trainer=trainer, **options)
            if record is not None:
                record.wrap(method)
            stream = make_stream(config, bench.loader.dataset)
            if config.stream == "tasks":
                method.require_learnable(stream.sizes)
        except DafuseError:
            folder.discard_if_empty()
            raise

        done = _same_everywhere(done, ranks)
        if _is_finished(done):
            progress.say(f"{folder.path} is finished; nothing to compute")
            return folder.path
        if done is None:
            results = Results(stream.classes, stream.sizes, bench.loader.skipped)
        else:
            results = done.results
        matrix = results.matrix
        sources = provenance(bench.network, bench.loader, trainer.device, ranks.count)
        with ranks.together():
            if ranks.is_first:
                require_same_inputs(config, sources)
            folder.certify(sources, resumed=done is not None)
        if done is not None:
            _load(method, done, stream, trainer, folder)
            progress.say(f"going on with {step} {done.task + 2} of {len(stream)} in {folder.path}")
        begun = {"task": len(matrix), "versions": versions(), "device": sources["device"]}
        folder.event("resume" if done else "start", **begun)

        for task in list(stream)[len(matrix) :]:
            trainer.begin_task()
            new = ", ".join(task.class_names) or "no new class"
            progress.say(f"{step} {task.number}/{len(stream)}: {new}")
            diagnosis = learn_or_observe(method, trainer, task, config)
            evaluation = evaluate(method, trainer, stream.tests_until(task), task.seen)
            _add(results, task, trainer, method, options, evaluation, diagnosis)
            state = _same_state(method, ranks)
            with ranks.together():
                folder.save(task.index, state, results)
            accuracy = matrix.curve_per_sample()[-1]
            folder.event("task", task=task.index, accuracy=accuracy, seconds=trainer.seconds)
            tested = f"{accuracy:.2f} % of" if sum(evaluation.total) else "there are no"
            progress.say(f"  {tested} test images of {task.seen} classes")
        folder.event("finish", **matrix.metrics())
        return folder.path


def launch_for(config: RunConfig) -> Fabric:
    """Return a Fabric on the devices that the configuration or torchrun asks for."""
    devices = started_on(config.devices, config.nodes)
    return launch(config.device, config.precision, config.deterministic, *devices)


def _is_finished(done: Checkpoint | None) -> bool:
    return done is not None and done.results.finished


def _same_everywhere(done: Checkpoint | None, ranks: Ranks) -> Checkpoint | None:
    """Return the checkpoint of the process that reads it."""
    if ranks.count == 1:
        return done
    about = ranks.broadcast((done.task, done.results) if done is not None else None)
    state = ranks.broadcast_tensors(done.state if done is not None else None)
    return None if about is None or state is None else Checkpoint(about[0], state, about[1])


def _same_state(method: Method, ranks: Ranks) -> dict[str, Tensor]:
    """Return the state to save; every process goes on from it, so that none drifts apart."""
    state = method.state()
    if ranks.count > 1:
        same = ranks.broadcast_tensors(state)
        if not ranks.is_first and same is not None:
            method.load_state(same)
    return state


def _load(
    method: Method, done: Checkpoint, stream: Stream, trainer: Trainer, folder: RunFolder
) -> None:
    """Continue from a checkpoint; refuse one of another stream or another method."""
    then = done.results
    fits = then.classes == stream.classes and then.task_sizes == stream.sizes
    state = {k: t.to(trainer.device) for k, t in done.state.items()}
    try:
        if fits:
            method.load_state(state)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError):
        fits = False  # tensors by other names, or of other shapes
    if not fits:
        raise DafuseError(
            f"the checkpoint in {folder.path} is not of this run; {folder.start_again}"
        )


def _add(
    results: Results,
    task: Task,
    trainer: Trainer,
    method: Method,
    options: Options,
    evaluation: TaskEvaluation,
    diagnosis: dict[str, Any],
) -> None:
    """Add a finished task to the results."""
    results.add(evaluation.correct, evaluation.total, evaluation.others)
    results.confusion = evaluation.confusion.tolist()
    results.declared = Declared(
        method.passes(task.number, options),
        method.keeps_images,
        method.assumes,
        evaluation.prediction,
        methods.with_defaults(method.name, {}),
    )
    results.tasks.append(
        FinishedTask(
            trainer.seconds,
            trainer.images,
            trainer.kept_bytes(method),
            trainer.epoch_losses,
            evaluation.calibration_error,
            evaluation.correct_then,
            trainer.forward.deviation,
            diagnosis,
            trainer.ranks.count,
        )
    )
