"""Classifier alignment against published code, which builds every Gaussian again in each epoch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.nn import functional as F

from dafuse.benchmarks.rounds import BenchRow, Goal, Measured, compared
from dafuse.benchmarks.setting import SEED, Parts, Setting
from dafuse.engine.cuda_graphs import graphed
from dafuse.engine.devices import seconds
from dafuse.heads.alignment import Step, align
from dafuse.heads.cosine import cosine_logits, prototypes
from dafuse.heads.gaussians import JITTER, ClassMemory, Sampler
from dafuse.seeds import derive

GOAL = Goal("ratio", least=30)
LR, MOMENTUM, WEIGHT_DECAY = 0.005, 0.9, 5e-4
SPREAD, DIRECTIONS = 0.2, 32  # std of the class means; wide directions of a class
TESTED = 50  # held-out features of each class


@dataclass(frozen=True)
class AlignmentSizes:
    classes: int
    width: int
    epochs: int
    samples: int  # features drawn for each class in each epoch
    images: int = 100  # images of each class, from which its Gaussian is estimated
    rounds: int = 5  # max number of rounds


SIZES = {
    "gpu": AlignmentSizes(200, 768, 30, 240),
    "cpu": AlignmentSizes(200, 768, 30, 240, rounds=2),  # each round takes minutes
    "quick": AlignmentSizes(6, 48, 4, 32, 20),
}


def parts(setting: Setting) -> Parts:
    sizes = setting.sizes(SIZES)
    name = f"{sizes.classes} classes, {sizes.width} dimensions"
    return {name: partial(_measure, setting, sizes)}


class _World:
    """Overlapping classes: their features, what is kept of them, and features to test with."""

    def __init__(self, sizes: AlignmentSizes, device: torch.device) -> None:
        self.sizes, self.device = sizes, device
        self.generator = torch.Generator(device).manual_seed(derive(SEED, "features"))
        classes, width = sizes.classes, sizes.width
        means_CD = SPREAD * self._normal(classes, width)
        factors_CDK = self._normal(classes, width, DIRECTIONS) / DIRECTIONS**0.5
        true = Sampler(means_CD, factors_CDK, torch.full_like(means_CD, 0.3))
        feats_CnD = true.draw(sizes.images, self.generator)
        labels_N = torch.arange(classes, device=device).repeat_interleave(sizes.images)
        feats_ND = feats_CnD.flatten(0, 1)
        self.weights_CD = F.normalize(prototypes(feats_ND, labels_N, 0, classes), dim=1)
        self.memory = ClassMemory(width)
        self.memory.add(feats_ND, labels_N, 0, classes)
        eye = JITTER * torch.eye(width, device=device)
        self.means_CD = feats_CnD.mean(1)
        self.covariances = [torch.cov(feats_nD.T) + eye for feats_nD in feats_CnD]
        self.held_out_CnD = true.draw(TESTED, self.generator)

    def accuracy(self, weights_CD: Tensor) -> float:
        """Return the accuracy on held-out features, in percent."""
        logits_CnC = cosine_logits(self.held_out_CnD, weights_CD)
        right_Cn = (
            logits_CnC.argmax(2) == torch.arange(len(weights_CD), device=self.device)[:, None]
        )
        return 100 * right_Cn.float().mean().item()

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)


def _published(world: _World) -> Iterator[Tensor]:
    """Yield the class weights after each epoch."""
    sizes = world.sizes
    weights = nn.Parameter(world.weights_CD.clone())
    optimiser = torch.optim.SGD([weights], LR, MOMENTUM, weight_decay=WEIGHT_DECAY)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, sizes.epochs)
    while True:
        drawn, labels = [], []
        for label, (mean, covariance) in enumerate(
            zip(world.means_CD, world.covariances, strict=True)
        ):
            drawn.append(MultivariateNormal(mean, covariance).sample((sizes.samples,)))
            labels += [label] * sizes.samples
        feats_ND = torch.cat(drawn)
        labels_N = torch.tensor(labels, device=world.device)
        shuffle = torch.randperm(len(feats_ND), device=world.device)
        feats_ND, labels_N = feats_ND[shuffle], labels_N[shuffle]
        for start in range(0, len(feats_ND), sizes.samples):
            batch = slice(start, start + sizes.samples)
            loss = F.cross_entropy(cosine_logits(feats_ND[batch], weights), labels_N[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        decay.step()
        yield weights.detach().clone()


def _measure(setting: Setting, sizes: AlignmentSizes) -> list[BenchRow]:
    """Run the published epochs once, some in each round, since all take equally long."""
    device = setting.fabric().device
    world = _World(sizes, device)
    rounds = min(setting.rounds, sizes.rounds, sizes.epochs)
    shares = [len(part) for part in torch.arange(sizes.epochs).tensor_split(rounds)]
    epochs, coming = iter(shares), _published(world)
    last = {"start": [world.weights_CD], "published": [], "own": []}  # of finished rounds

    def published() -> float:
        count = next(epochs)
        took = seconds(lambda: last["published"].extend(islice(coming, count)), device)
        return took / count

    def faster(step: Step) -> Step:
        return graphed(step, "a step of alignment", device)

    def own() -> float:
        def whole() -> None:
            sampler, how = world.memory.sampler(device), (LR, MOMENTUM, WEIGHT_DECAY)
            length = sizes.epochs, sizes.samples
            aligned = align(
                world.weights_CD, sampler, world.generator, *length, *how, faster=faster
            )
            last["own"].append(aligned)

        return seconds(whole, device) / sizes.epochs

    variants = {"published": published, "own": own}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(SEED, "published"))
        measured = setting.alternate(variants, "alignment", warm_up=("own",), most=rounds)
    last["published"] = last["published"][sizes.epochs - 1 :]  # empty before the last epoch
    scored = {name: Measured([world.accuracy(r) for r in rows]) for name, rows in last.items()}
    return _rows(sizes, measured, scored, None if setting.quick else GOAL)


def _rows(
    sizes: AlignmentSizes,
    measured: dict[str, Measured],
    scored: dict[str, Measured],
    goal: Goal | None,
) -> list[BenchRow]:
    base = "the published way"
    rows = [
        compared(f"{base}, an epoch", "s", measured["published"]),
        compared(
            "dafuse, an epoch", "s", measured["own"], (base, measured["published"]), goal=goal
        ),
    ]
    tested = f"{sizes.classes * TESTED} held-out features, {sizes.epochs} epochs"
    against = base, Measured(scored["published"].values * len(scored["own"].values))
    for name, label in (("published", base), ("own", "dafuse"), ("start", "class means alone")):
        if scored[name].values:
            other = None if name == "published" else against
            what = f"accuracy, {label}"
            rows.append(compared(what, "%", scored[name], other, "difference", note=tested))
    return rows
