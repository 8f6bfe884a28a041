"""Requests of each method to the shared parts: training, alignment, class memory, penalties.

The tables are written by hand from the papers and the authors' settings. Nothing is trained: a spy
in the place of training and alignment writes down what it was asked for.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Stream, Task
from dafuse.engine.trainer import Trainer
from dafuse.heads.alignment import align
from dafuse.methods import ranpac
from dafuse.methods.contract import Loss
from dafuse.methods.registry import METHODS, with_defaults
from dafuse.methods.schedule import Group, Schedule
from helpers.small_datasets import small_dataset
from helpers.small_runs import small_stream, small_trainer

COUNTS = [5, 4, 3, 6, 4]  # images of each class
SIZES = [3, 2]  # classes of each task: 12 images, then 10

# how many numbers a part has; the small network has width 24, depth 3, 16 patches of 8 x 8
WIDTH, DEPTH, RANK = 24, 3, 4
ADAPTER = DEPTH * (2 * WIDTH * RANK + RANK + WIDTH)
BLOCK = 12 * WIDTH**2 + 13 * WIDTH
TAIL = BLOCK + 2 * WIDTH  # a block and a norm
NETWORK = (3 * 8 * 8 + 1) * WIDTH + (1 + 17) * WIDTH + DEPTH * BLOCK + 2 * WIDTH
LINEAR, COSINE_ROW = WIDTH + 1, WIDTH  # a row with a bias, a row without

# factors of the learning rate, epoch by epoch
COSINE_3, COSINE_4, COSINE_2 = (1, 0.75, 0.25), (1, 0.853553, 0.5, 0.146447), (1, 0.5)
CONSTANT_3 = (1, 1, 1)
QUARTER_3 = (1, 0.712639, 0.015707)  # cos(99πe / (200(E - 1)))
TENTH_10 = (1,) * 9 + (0.1,)

TRAINED = {"epochs": 3, "batch_size": 7, "lr": 0.011, "weight_decay": 0.0007}
ADAPTED = {**TRAINED, "adapter_rank": RANK}
ALIGNED = {"align_epochs": 6, "align_samples": 9, "align_lr": 0.013}
KEEPS_TWO = {"exemplars_per_class": 2}  # 6 images after the first task


class Fit(NamedTuple):
    """One training; numbers are rounded."""

    groups: tuple[tuple[float, int], ...]  # learning rate at the start, numbers trained
    decay: tuple[float, ...] = COSINE_3  # as long as there are epochs
    images: int = 0
    weight_decay: float = 0.0007
    batch_size: int = 7
    optimiser: str = "sgd"
    momentum: float = 0.9
    epochs_before: int = 0
    after_step: bool = False


class Alignment(NamedTuple):
    weight_decay: float = 5e-4
    old_means: float = 1.0  # what the means of the first task's classes are multiplied by
    period: int = 6  # epochs in which the rate falls to zero
    epochs: int = 6
    samples: int = 9
    lr: float = 0.013
    momentum: float = 0.9
    classes: int = 5


class Wiring(NamedTuple):
    options: dict[str, Any]
    first: list[Fit]
    second: list[Fit]
    alignment: Alignment | None = None  # in the second task; there is none in the first
    head: Callable[[Tensor, Tensor], Tensor] | None = None  # features, rows -> aligned logits


def cosine_head(feats_ND: Tensor, weights_CD: Tensor) -> Tensor:
    return 20 * F.cosine_similarity(feats_ND[:, None], weights_CD[None], dim=2)


def linear_head(feats_ND: Tensor, weights_CE: Tensor) -> Tensor:
    return feats_ND @ weights_CE[:, :-1].T + weights_CE[:, -1]


def slca_head(feats_ND: Tensor, weights_CE: Tensor) -> Tensor:
    logits_NC = linear_head(feats_ND, weights_CE)
    lengths = logits_NC[:, :3].norm(dim=1), logits_NC[:, 3:].norm(dim=1)
    return logits_NC / ((lengths[0] + lengths[1]) / 2)[:, None] / 0.1


def fit(numbers: int, images: int, **others: Any) -> Fit:
    """A training of one group."""
    return Fit(((0.011, numbers),), images=images, **others)


def adapter_and_rows(**others: Any) -> tuple[list[Fit], list[Fit]]:
    first = fit(ADAPTER + 3 * COSINE_ROW, 12, **others)
    return [first], [fit(ADAPTER + 2 * COSINE_ROW, 10, **others)]


DAFS = ("daf", "daf-paper", "daf-retrieval")
DAF = Wiring(
    {**ADAPTED, **ALIGNED, "momentum": 0.8},
    *adapter_and_rows(momentum=0.8),
    Alignment(),
    cosine_head,
)
PROXY = fit(ADAPTER + 3 * COSINE_ROW + 1, 12)  # and the scale
WIRING = {
    **dict.fromkeys(DAFS, DAF),
    "finetune": Wiring(
        {**TRAINED, "first_weight_decay": 0.0003},
        [fit(NETWORK + 3 * LINEAR, 12, decay=CONSTANT_3, weight_decay=0.0003)],
        [fit(NETWORK + 5 * LINEAR, 10, decay=CONSTANT_3)],
    ),
    "joint": Wiring(ADAPTED, [fit(ADAPTER + 3 * LINEAR, 12)], [fit(ADAPTER + 5 * LINEAR, 22)]),
    "aper": Wiring(ADAPTED, [PROXY], []),
    "lift": Wiring({**ADAPTED, "tune": "first"}, [PROXY], []),
    "ranpac": Wiring({**ADAPTED, "projection": 30}, [PROXY], []),
    "layup": Wiring({**ADAPTED, "tune": "first"}, [PROXY], []),
    "anacp": Wiring({**ADAPTED, "tune": "first", "width": 30, "samples": 4}, [PROXY], []),
    "slca": Wiring(
        {**TRAINED, **ALIGNED, "epochs": 10, "backbone_rate": 0.02},
        [Fit(((0.00022, NETWORK), (0.011, 3 * LINEAR)), TENTH_10, 12)],
        [Fit(((0.00022, NETWORK), (0.011, 2 * LINEAR)), TENTH_10, 10)],
        Alignment(old_means=0.95),
        slca_head,
    ),
    "ssiat": Wiring(
        {**ADAPTED, **ALIGNED, "first_epochs": 4},
        [fit(ADAPTER + 3 * COSINE_ROW, 12, decay=COSINE_4)],
        [fit(ADAPTER + 2 * COSINE_ROW, 10)],
        Alignment(old_means=0.95),
        cosine_head,
    ),
    "ease": Wiring(ADAPTED, [PROXY], [fit(ADAPTER + 2 * COSINE_ROW + 1, 10)]),
    "mos": Wiring(  # the head at a tenth of the rate; the run's weight decay in the alignment
        {**ADAPTED, **ALIGNED},
        [Fit(((0.011, ADAPTER), (0.0011, 3 * LINEAR)), images=12)],
        [Fit(((0.011, ADAPTER), (0.0011, 2 * LINEAR)), images=10, after_step=True)],
        Alignment(weight_decay=0.0007),
        linear_head,
    ),
    "tuna": Wiring(
        {**ADAPTED, **ALIGNED, "decay": True},
        *adapter_and_rows(),
        Alignment(old_means=0.95, period=5),
        cosine_head,
    ),
    "l2p": Wiring(
        {**TRAINED, "pool_size": 4, "prompts_per_image": 2},
        [fit(4 * 5 * WIDTH + 4 * WIDTH + 75, 12, decay=CONSTANT_3, optimiser="adam")],
        [fit(4 * 5 * WIDTH + 4 * WIDTH + 50, 10, decay=CONSTANT_3, optimiser="adam")],
    ),
    "dualprompt": Wiring(  # general prompts in two blocks, the expert's in the third
        {**TRAINED},
        [fit(3 * 2 * 5 * WIDTH + WIDTH + 75, 12, decay=CONSTANT_3, optimiser="adam")],
        [fit(3 * 2 * 5 * WIDTH + WIDTH + 50, 10, decay=CONSTANT_3, optimiser="adam")],
    ),
    "coda": Wiring(  # in each block a task's own two components: prompt, key, attention
        {**TRAINED, "components_per_task": 2},
        [fit(3 * 2 * (8 + 2) * WIDTH + 75, 12, decay=QUARTER_3, optimiser="adam")],
        [fit(3 * 2 * (8 + 2) * WIDTH + 50, 10, decay=QUARTER_3, optimiser="adam")],
    ),
    "icarl": Wiring(
        {**TRAINED, **KEEPS_TWO, "first_weight_decay": 0.0003},
        [fit(NETWORK + 3 * LINEAR, 12, decay=CONSTANT_3, weight_decay=0.0003)],
        [fit(NETWORK + 5 * LINEAR, 16, decay=CONSTANT_3)],
    ),
    "memo": Wiring(  # the second task: a tail, rows over two tails, and rows for new and old
        {**TRAINED, **KEEPS_TWO, "first_epochs": 4},
        [fit(NETWORK + 3 * LINEAR, 12, decay=COSINE_4)],
        [fit(TAIL + 5 * (2 * WIDTH + 1) + (2 + 1) * LINEAR, 16)],
    ),
    "foster": Wiring(  # the second task: boosting, then compression
        {**TRAINED, **KEEPS_TWO, "first_epochs": 4, "compress_epochs": 2},
        [fit(NETWORK + 3 * LINEAR, 12, decay=COSINE_4)],
        [
            fit(NETWORK + 5 * (2 * WIDTH + 1) + 5 * LINEAR, 16),
            fit(NETWORK + 5 * LINEAR, 16, decay=COSINE_2, weight_decay=0.0, epochs_before=3),
        ],
    ),
}


def official(
    epochs: int, lr: float, batch_size: int, weight_decay: float | None, **more: Any
) -> dict[str, Any]:
    found = {"epochs": epochs, "lr": lr, "batch_size": batch_size, **more}
    return found if weight_decay is None else {**found, "weight_decay": weight_decay}


def gaussians(epochs: int, lr: float, samples: int) -> dict[str, Any]:
    alignment = {"align_epochs": epochs, "align_lr": lr, "align_samples": samples}
    return {**alignment, "memory": "full"}


# CIFAR-100 in tasks of five classes: numbers of the papers or the authors' files; None: not said
PROMPTS = {"prompt_length": 5, "key_weight": 0.1}
KEPT = {"exemplars_per_class": 20}
OFFICIAL = {
    **dict.fromkeys(DAFS, official(20, 0.01, 48, None, momentum=0.9, adapter_rank=16)),
    "finetune": official(20, 1e-3, 128, 2e-4, first_weight_decay=5e-4),
    "aper": official(20, 0.01, 48, 5e-4, adapter_rank=64),
    "ranpac": official(20, 0.01, 48, 5e-4, adapter_rank=64, projection=10_000),
    "slca": official(20, 0.01, 64, 5e-4, backbone_rate=0.01, **gaussians(5, 0.01, 256)),
    "ssiat": official(10, 0.01, 48, 5e-4, first_epochs=20, adapter_rank=64)
    | gaussians(5, 0.01, 256),
    "ease": official(20, 0.025, 48, 5e-4, adapter_rank=64, cross_weight=0.1),
    "mos": official(20, 0.03, 48, 5e-4, adapter_rank=16, merge=0.1, orth=0.1, rounds=4)
    | gaussians(30, 0.005, 240),
    "tuna": official(15, 0.01, 16, 5e-4, adapter_rank=16, orth=1e-3) | gaussians(30, 0.005, 80),
    "l2p": official(5, 0.001875, 16, 0.0, pool_size=10, prompts_per_image=5, **PROMPTS),
    "dualprompt": official(5, 0.001, 24, 0.0, general_layers=2, expert_layers=3, **PROMPTS),
    "coda": official(20, 0.001, 128, 0.0, prompt_length=8, prompt_layers=5)
    | {"components_per_task": 5},  # 100 in all
    "icarl": official(20, 1e-3, 128, 2e-4, first_weight_decay=5e-4, temperature=2.0, **KEPT),
    "memo": official(20, 1e-3, 32, None, first_epochs=10, auxiliary_weight=1.0, **KEPT),
    "foster": official(20, 1e-3, 32, 5e-4, first_epochs=20, compress_epochs=20, **KEPT)
    | {"boost_beta": 0.96, "compress_beta": 0.97, "temperature": 2.0},
}


class Spy:
    """Writes down what is asked for, and trains and aligns nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fits: list[Fit] = []
        self.losses: list[tuple[Loss, list[nn.Parameter]]] = []
        self.alignments: list[dict[str, Any]] = []
        monkeypatch.setattr(Trainer, "fit", self.fit)
        monkeypatch.setattr("dafuse.methods.training.align", self.align)

    def fit(
        self,
        task: Task,
        attached: Any,
        loss: Loss,
        groups: Sequence[Group],
        schedule: Schedule,
        *,
        images: ImageSet | None = None,
        after_step: Callable[[], None] | None = None,
        epochs_before: int = 0,
    ) -> None:
        parameters = [list(group.parameters) for group in groups]
        trained = [parameter for group in parameters for parameter in group]
        assert len(set(map(id, trained))) == len(trained)
        assert all(parameter.requires_grad for parameter in trained)
        rates = [round(schedule.lr * group.rate, 9) for group in groups]
        epochs = range(schedule.epochs)
        self.losses.append((loss, trained))
        self.fits.append(
            Fit(
                tuple(zip(rates, map(numbers, parameters), strict=True)),
                tuple(round(schedule.decay(epoch, schedule.epochs), 6) for epoch in epochs),
                len(task.train if images is None else images),
                schedule.weight_decay,
                schedule.batch_size,
                schedule.optimiser,
                schedule.momentum,
                epochs_before,
                after_step is not None,
            )
        )

    def align(self, weights_CD: Tensor, *args: Any, **options: Any) -> Tensor:
        call = inspect.signature(align).bind(weights_CD, *args, **options)
        call.apply_defaults()
        self.alignments.append(call.arguments)
        return weights_CD.clone()


def numbers(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def make(
    name: str, options: dict[str, Any], counts: list[int] = COUNTS, sizes: list[int] = SIZES
) -> tuple[Any, Trainer, Stream]:
    dataset = small_dataset(counts)
    trainer = small_trainer(dataset)
    return METHODS[name](trainer=trainer, **options), trainer, small_stream(dataset, sizes)


def test_every_method_that_trains_is_in_the_tables() -> None:
    trains = METHODS.keys() - {"simplecil", "klda"}
    assert WIRING.keys() == trains
    # these have no official settings, or, as LayUP's and AnaCP's, such of another optimiser
    assert OFFICIAL.keys() == trains - {"joint", "lift", "layup", "anacp"}


@pytest.mark.parametrize("name", WIRING)
def test_training_and_alignment_are_asked_for_as_published(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy, expected = Spy(monkeypatch), WIRING[name]
    method, _, stream = make(name, expected.options)
    method.learn(stream[0])
    assert spy.fits == expected.first
    assert not spy.alignments
    method.learn(stream[1])
    assert spy.fits == expected.first + expected.second
    if expected.alignment is None:
        assert not spy.alignments
        return
    (asked,) = spy.alignments
    assert noted(asked, method) == expected.alignment
    assert expected.head is not None
    assert_gradient_of(expected.head, asked["gradient"], asked["weights_CD"])


def noted(asked: dict[str, Any], method: Any) -> Alignment:
    kept_CD = method.classes.tensors["mean"]
    factors_C = (asked["sampler"].mean_CD / kept_CD).mean(1)
    assert factors_C[3:].tolist() == pytest.approx([1, 1])  # of the new classes
    return Alignment(
        asked["weight_decay"],
        round(float(factors_C[:3].mean()), 5),
        asked["period"] or asked["epochs"],
        asked["epochs"],
        asked["samples"],
        asked["lr"],
        asked["momentum"],
        len(asked["weights_CD"]),
    )


def assert_gradient_of(
    head: Callable[[Tensor, Tensor], Tensor],
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor],
    like_CE: Tensor,
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(like_CE.shape, generator=generator, requires_grad=True)
    feats = torch.randn(11, WIDTH, generator=generator)
    labels = torch.arange(11) % len(rows)
    F.cross_entropy(head(feats, rows), labels).backward()
    assert rows.grad is not None
    assert torch.allclose(gradient(rows.detach(), feats, labels), rows.grad, atol=1e-5)


@pytest.mark.parametrize("name", OFFICIAL)
def test_defaults_are_the_official_ones_of_cifar100(name: str) -> None:
    defaults = with_defaults(name, {})
    assert {option: defaults[option] for option in OFFICIAL[name]} == OFFICIAL[name]


@pytest.mark.parametrize("number", [1, 2])
def test_the_margin_of_ssiat_is_in_its_loss(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    method, trainer, stream = make("ssiat", {**ADAPTED, "margin": 0.3, "align_epochs": 0})
    for task in list(stream)[:number]:
        method.learn(task)
    ((images, labels),) = trainer.batches(stream[number - 1].train)
    loss, (*_, rows) = spy.losses[-1]
    cosines = F.cosine_similarity(trainer.encode(images, method.adapter)[:, None], rows, dim=2)
    terms = []
    for row, label in zip(cosines, labels - stream[number - 1].first, strict=True):
        own = torch.exp(20 * (row[label] - 0.3))
        others = sum(torch.exp(20 * c) for j, c in enumerate(row) if j != label)
        terms.append(-torch.log(own / (own + others)))
    assert loss(images, labels).item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "jitter"),
    [("daf", 1e-4), ("slca", 1e-4), ("ssiat", 1e-3), ("mos", 1e-4), ("tuna", 1e-4)],
)
def test_what_is_added_to_every_variance(
    name: str, jitter: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of one image, with none to borrow a covariance from, has only that."""
    Spy(monkeypatch)
    method, trainer, stream = make(name, {}, [1], [1])
    method.learn(stream[0])
    (covariance,) = method.classes.sampler(trainer.device).covariance()
    assert torch.allclose(covariance, jitter * torch.eye(WIDTH), atol=jitter / 1000)


def test_ranpac_tries_penalties_on_four_fifths_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    Spy(monkeypatch)
    tried = []

    def choose_penalty(*tensors: Tensor, lift: Any) -> float:
        tried.append(tensors)
        return 1.0

    monkeypatch.setattr(ranpac, "choose_penalty", choose_penalty)
    method, trainer, stream = make("ranpac", WIRING["ranpac"].options)
    method.learn(stream[0])
    method.learn(stream[1])
    sizes = [[len(tensor) for tensor in tensors] for tensors in tried]
    assert sizes == [[9, 9, 3, 3], [8, 8, 2, 2]]  # of 12 images, then of 10
    for task, (fitted, _, held_out, _) in zip(stream, tried, strict=True):
        feats, _ = trainer.features(task.train, method.adapter)
        nearest = torch.cdist(torch.cat([fitted, held_out]), feats).argmin(1)
        assert sorted(nearest.tolist()) == list(range(len(feats)))  # each image once
        assert nearest.tolist() != sorted(nearest.tolist())  # and mixed
