"""The quality of DAF's approximations, measured at the task adapters of a recorded run.

For each task, on some of its training images, under the head that the adapter was trained with,
without dropout:

- the Fisher diagonal F against the diagonal of the Hessian, estimated by random signs (all entries)
  and exact (some entries of each tensor); F over batches against F over samples, on all images; and
  α r + 1, which Eq. 13 uses in place of the Hessian;
- along the path from θ_t to the fused θ*_t: the true loss, and its parabolas by F, by the Hessian's
  diagonal, by the whole Hessian and by Eq. 13.
"""

import time
from dataclasses import replace

import torch
from torch import Tensor

from dafuse.backbones.adapter import Tensors
from dafuse.data.stream import Task
from dafuse.engine.trainer import Trainer
from dafuse.experiments.declared import MeasureOptions
from dafuse.fusion.agreement import agreements, bend, dot, parabola
from dafuse.fusion.gradients import Curvature
from dafuse.fusion.hessian import diagonal_at, hutchinson, product
from dafuse.fusion.rule import fisher_ratio
from dafuse.methods.curvature import curvature_at, losses_under
from dafuse.methods.daf import DAF
from dafuse.report.measured_approximations import MeasuredTask
from dafuse.seeds import numpy_generator, torch_generator

SHARES = tuple(k / 10 for k in range(11))  # shares s of the path
BATCH = 64  # images in one graph of two backward passes


def measure_task(
    trainer: Trainer, task: Task, method: DAF, options: MeasureOptions
) -> MeasuredTask:
    """Return all numbers of one task; the method has just learned it."""
    start = time.perf_counter()
    adapter, head = method.task_adapter, method.task_head_CD
    trained = adapter.tensors()
    by_sample = curvature_at(trainer, task, adapter, head).fisher
    by_batch = curvature_at(trainer, task, adapter, head, per_batch=method.batch_size).fisher
    drawn = numpy_generator(trainer.seed, "measured images", task.index)
    rows = drawn.permutation(len(task.train))[: options.images]
    task = replace(task, train=task.train.take(rows))
    at_task = curvature_at(trainer, task, adapter, head)
    ratio = fisher_ratio(at_task.fisher, method.fisher_scope)
    rule = {key: method.alpha * r + 1 for key, r in ratio.items()}  # L'' by Eq. 13
    diagonal, exact, places = _hessian(trainer, task, method, head, options)
    sampled = {
        name: {key: whole[key].flatten().cpu()[places[key]] for key in places}
        for name, whole in (("fisher", at_task.fisher), ("rule", rule), ("signs", diagonal))
    }
    sampled["exact"] = {key: part.cpu() for key, part in exact.items()}
    path = _path(trainer, task, method, head, at_task, diagonal, rule)
    adapter.set(trained)
    return MeasuredTask(
        task.index,
        len(task.train),
        {
            "fisher_signs": agreements(at_task.fisher, diagonal),
            "fisher_exact": agreements(sampled["fisher"], sampled["exact"]),
            "signs_exact": agreements(sampled["signs"], sampled["exact"]),
            "batch_sample": agreements(by_batch, by_sample),
            "rule_exact": agreements(sampled["rule"], sampled["exact"]),
        },
        path,
        {
            name: {key: part.tolist() for key, part in parts.items()}
            for name, parts in sampled.items()
        },
        time.perf_counter() - start,
    )


def _hessian(
    trainer: Trainer, task: Task, method: DAF, head: Tensor, options: MeasureOptions
) -> tuple[Tensors, Tensors, Tensors]:
    """Return the Hessian's diagonal by random signs, exact at some indices, and these indices."""
    parameters = dict(method.task_adapter.named_parameters())
    losses = losses_under(trainer, task, method.task_adapter, head)
    batches = -(-len(task.train) // BATCH)
    signs = torch_generator(trainer.seed, "hutchinson", task.index)
    with trainer.phase("random signs", steps=batches * options.probes * len(parameters)) as bar:
        images = trainer.batches(task.train, BATCH)
        diagonal = hutchinson(losses, parameters, images, options.probes, signs, bar)
    drawn = torch_generator(trainer.seed, "measured entries", task.index)
    places = {
        key: torch.randperm(p.numel(), generator=drawn)[: options.coordinates]
        for key, p in parameters.items()
    }
    steps = batches * sum(map(len, places.values()))
    with trainer.phase("exact entries", steps=steps) as bar:
        images = trainer.batches(task.train, BATCH)
        exact = diagonal_at(losses, parameters, images, places, bar)
    return dict(diagonal), dict(exact), places


def _path(
    trainer: Trainer,
    task: Task,
    method: DAF,
    head: Tensor,
    at_task: Curvature,
    diagonal: Tensors,
    rule: Tensors,
) -> dict[str, list[float]] | None:
    """Return the loss from θ_t to θ*_t, true and by each parabola; nothing if they are equal."""
    start, end = method.task_adapter.tensors(), method.global_adapter.tensors()
    step = {key: end[key] - start[key] for key in start}
    if not any(part.any() for part in step.values()):
        return None
    losses = losses_under(trainer, task, method.task_adapter, head)
    parameters = dict(method.task_adapter.named_parameters())
    with trainer.phase("along the step", steps=1):
        along = product(losses, parameters, trainer.batches(task.train, BATCH), step)
    true = []
    with torch.no_grad(), trainer.phase("path", steps=len(SHARES)) as bar:
        for share in SHARES:
            method.task_adapter.set({key: start[key] + share * step[key] for key in start})
            parts = [losses(x, y) for x, y in trainer.batches(task.train)]
            true.append(float(torch.cat(parts).cpu().double().mean()))
            bar.advance()
    bends = {
        "fisher": bend(at_task.fisher, step),
        "diagonal": bend(diagonal, step),
        "hessian": dot(along, step),
        "rule": bend(rule, step),
    }
    slope = dot(at_task.gradient, step)
    models = {name: parabola(true[0], slope, value, SHARES) for name, value in bends.items()}
    return {"shares": list(SHARES), "true": true, **models}
