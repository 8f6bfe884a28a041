"""The training loop of one task, and the rest of what methods ask of the engine."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from dafuse.backbones.attach import Attachment
from dafuse.backbones.depths import Depths
from dafuse.backbones.network import Network
from dafuse.data.batches import Loader
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.engine.cuda_graphs import graphed
from dafuse.engine.devices import wait_for
from dafuse.engine.forward import Forward
from dafuse.engine.ranks import Ranks
from dafuse.engine.shared_steps import WholeBatchDropout, share_loss
from dafuse.errors import DafuseError
from dafuse.methods.contract import Batches, Loss, Method
from dafuse.methods.schedule import Group, Schedule
from dafuse.progress import Bar, Progress
from dafuse.seeds import derive, torch_generator

if TYPE_CHECKING:
    from dafuse.engine.run_shards import SharedImages

# Values that a block keeps per token for the backward pass, in multiples of the width: 18, as
# measured with 512 images of DeiT-Tiny in bf16, which took 8.5 GB in all.
KEPT_VALUES = 20


class Trainer:
    """Forward and backward passes of a method, on a device, in a precision, with progress.

    It is the `Engine` of the methods.
    """

    def __init__(
        self,
        network: Network,
        loader: Loader,
        fabric: Fabric,
        seed: int,
        progress: Progress | None = None,
        compiled: bool | None = False,  # None: only on a GPU
    ) -> None:
        self.device = fabric.device
        self.network = network.to(self.device)
        self.loader, self.fabric, self.seed = loader, fabric, seed
        self.ranks = Ranks(fabric)
        self.progress = progress or Progress()
        on_gpu = self.device.type == "cuda"
        compiles = on_gpu if compiled is None else compiled
        at_once = 256 if on_gpu else 64
        self.forward = Forward(self.network, fabric, at_once, compiles, self.progress.say)
        self.gradient_batch = (  # images in a backward pass
            fitting_batch(self.network, self.device, self.forward.dtype) if on_gpu else at_once
        )
        self.seconds: dict[str, float] = {}  # of each phase of the current task
        self.images: dict[str, int] = {}  # number of images in each phase
        self.epoch_losses: list[float] = []
        self._batch = 0  # images of a training batch that several processes share
        self.shards: SharedImages | None = None  # of a cluster that computes features and answers

    def fit(
        self,
        task: Task,
        attached: Attachment | None,
        loss: Loss,
        groups: Sequence[Group],
        schedule: Schedule,
        *,
        images: ImageSet | None = None,
        after_step: Callable[[], None] | None = None,
        epochs_before: int = 0,
    ) -> None:
        images = task.train if images is None else images
        epochs, size = schedule.epochs, schedule.batch_size
        groups = [Group(list(group.parameters), group.rate) for group in groups]
        captured = self.device.type == "cuda" and self.ranks.count == 1
        optimiser = _optimiser(groups, schedule, self.device if captured else None)
        descend = self._descent(loss, groups, attached)

        def step(batch_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            optimiser.zero_grad(set_to_none=True)
            value = descend(batch_B3SS, labels_B)
            optimiser.step()
            if after_step is not None:
                after_step()
            return value.detach()

        take_step = self.graphed(step, "this training step") if captured else step
        steps = epochs * math.ceil(len(images) / size)
        with (
            self._training(task, attached, size),
            self.phase("train", epochs * len(images), steps) as bar,
        ):
            for epoch in range(epochs):
                _set_rates(optimiser, schedule.decay(epoch, epochs))
                seed = self.seed, "augmentation", task.index, epochs_before + epoch
                losses = []
                for batch, labels in self._train_batches(images, size, torch_generator(*seed)):
                    losses.append(take_step(batch, labels))
                    bar.advance(note=f"epoch {epoch + 1}/{epochs}")
                self.epoch_losses.append(self._mean_finite(losses, task, epoch))
        optimiser.zero_grad(set_to_none=True)

    def encode(
        self,
        images_B3SS: Tensor,
        attached: Attachment | None,
        network: Network | None = None,
        depths: Depths = "last",
        prompts: Tensor | None = None,
    ) -> Tensor:
        return self.forward(images_B3SS, attached, network, depths, prompts)

    @torch.no_grad()
    def features(
        self,
        images: ImageSet,
        attached: Attachment | None,
        network: Network | None = None,
        depths: Depths = "last",
    ) -> tuple[Tensor, Tensor]:
        parts: list[Tensor] = []
        with self.phase("statistics", len(images), len(images)) as bar:
            if self.shards is not None and attached is None and network is None:
                return self.shards.features(self, images, depths, bar)
            for batch, _ in self.dealt(images, bar):
                parts.append(self.encode(batch, attached, network, depths))
        feats = self.ranks.in_order(parts, len(images), self.forward.at_once)
        return feats, torch.from_numpy(images.labels).to(self.device)

    def batches(
        self, images: ImageSet, size: int | None = None, gradients: bool = False
    ) -> Batches:
        """Yield all of the images, as `dealt` does where one process has them all."""
        size = size or (self.gradient_batch if gradients else self.forward.at_once)
        with self.forward.batches_of(size):
            yield from self.loader.test_batches(images, size)

    def dealt(
        self, images: ImageSet, bar: Bar, size: int | None = None, gradients: bool = False
    ) -> Batches:
        size = size or (self.gradient_batch if gradients else self.forward.at_once)
        own = images if self.ranks.count == 1 else images.take(self.ranks.rows(len(images), size))
        for batch in self.batches(own, size):
            yield batch
            bar.advance(min(size * self.ranks.count, len(images) - bar.done))

    def summed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.ranks.summed(tensors)

    def whole_batch(self, part_B: Tensor) -> Tensor:
        if self.ranks.count == 1 or not self._batch:
            return part_B
        return self.ranks.whole_batch(part_B, self._batch)

    def graphed(self, work: Callable[..., Tensor], what: str) -> Callable[..., Tensor]:
        return graphed(work, what, self.device, self.progress.say)

    def autocast(self) -> AbstractContextManager[None]:
        return self.fabric.autocast()

    def kept_images(self, index: np.ndarray, labels: np.ndarray) -> ImageSet:
        return ImageSet(self.loader.dataset.train.items, labels, index)

    def kept_bytes(self, method: Method) -> dict[str, int]:
        """Count the bytes that the method keeps, with the decoded pixels of its images."""
        kept = method.kept_bytes()
        if method.keeps_images:
            kept["exemplars"] += self.loader.pixel_bytes(method.exemplars())
        return kept

    @contextmanager
    def phase(self, name: str, images: int = 0, steps: int = 0) -> Iterator[Bar]:
        wait_for(self.device)
        start = time.perf_counter()
        with self.progress.bar(name, steps) as bar:
            yield bar
        wait_for(self.device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if images:
            self.images[name] = self.images.get(name, 0) + images

    def begin_task(self) -> None:
        """Forget the last task's times and losses."""
        self.seconds, self.images, self.epoch_losses = {}, {}, []

    def _descent(self, loss: Loss, groups: Sequence[Group], attached: Attachment | None) -> Loss:
        """Return a function for a batch's loss that also adds its gradient to the parameters.

        Where processes share the batch, it returns this one's part of the loss.
        """
        if self.ranks.count == 1:

            def descend(batch_B3SS: Tensor, labels_B: Tensor) -> Tensor:
                value = loss(batch_B3SS, labels_B)
                self.fabric.backward(value)
                return value

            return descend

        shared = share_loss(loss, groups, self.ranks)
        draws = attached is not None and not self._drops_apart

        def descend_together(batch_B3SS: Tensor, labels_B: Tensor) -> Tensor:
            own = self.ranks.share(self._batch)
            with WholeBatchDropout(own, self._batch) if draws else nullcontext():
                value = shared(batch_B3SS, labels_B)
            share = len(labels_B) / self._batch
            self.fabric.backward(value * (share * self.ranks.count))  # DDP takes the mean
            return value * share if len(labels_B) else torch.zeros_like(value)

        return descend_together

    def _train_batches(self, images: ImageSet, size: int, generator: torch.Generator) -> Batches:
        """Yield this process's part of each batch of an epoch."""
        if self.ranks.count == 1:
            yield from self.loader.train_batches(images, size, generator)
            return
        parts = self.loader.train_batches(images, size, generator, self.ranks.share)
        for start in range(0, len(images), size):
            self._batch = min(size, len(images) - start)
            own = self.ranks.share(self._batch)
            yield next(parts) if own.stop > own.start else self.loader.no_images()
        self._batch = 0

    @property
    def _drops_apart(self) -> bool:
        """Tell whether each process draws its own dropout: compiled code draws where it runs."""
        return self.forward.compiles and self.ranks.count > 1

    @contextmanager
    def _training(self, task: Task, attached: Attachment | None, batch_size: int) -> Iterator[None]:
        """Enter training mode, with this task's seed in torch's global generator for dropout."""
        module = attached if attached is not None else nn.Identity()
        devices = [self.device] if self.device.type == "cuda" else []
        part = math.ceil(batch_size / self.ranks.count)
        apart = [self.ranks.rank] if self._drops_apart and self.ranks.rank else []
        with self.forward.training(module, part), torch.random.fork_rng(devices):
            torch.manual_seed(derive(self.seed, "dropout", task.index, *apart))
            yield

    def _mean_finite(self, losses: list[Tensor], task: Task, epoch: int) -> float:
        """Return the epoch's mean loss; reading it once an epoch keeps the device busy."""
        values = self.ranks.summed({"loss": torch.stack(losses)})["loss"].float().cpu()
        wrong = (~values.isfinite()).nonzero()
        if len(wrong):
            step = int(wrong[0])
            raise DafuseError(
                f"the loss became {values[step]} in task {task.number}, epoch {epoch + 1}, "
                f"step {step + 1}; try a smaller lr. What was learned before it is kept."
            )
        return float(values.mean())


def fitting_batch(network: Network, device: torch.device, dtype: torch.dtype) -> int:
    """Return a power of two: the images whose activations fit into an eighth of all memory.

    It does not depend on free memory, so the same device always gives the same batches.
    """
    each = network.values_kept * KEPT_VALUES * dtype.itemsize
    fitting = torch.cuda.get_device_properties(device).total_memory // 8 // each
    return min(512, 1 << max(0, fitting.bit_length() - 1))


def _optimiser(
    groups: Sequence[Group], schedule: Schedule, captured_on: torch.device | None
) -> torch.optim.Optimizer:
    """Give each group its own peak rate, from which the schedule sets the rate of an epoch.

    A captured step reads the rate from the device's memory, where it can be changed.
    """
    settings: list[dict[str, Any]] = [
        {"params": list(group.parameters), "peak": schedule.lr * group.rate} for group in groups
    ]
    how: dict[str, Any] = {"foreach": True}
    if captured_on is not None:
        how = {"fused": True}
        for group in settings:
            group["lr"] = torch.tensor(group["peak"], device=captured_on)
    if schedule.optimiser == "adam":
        how["capturable"] = captured_on is not None
        return torch.optim.Adam(settings, weight_decay=schedule.weight_decay, **how)
    return torch.optim.SGD(
        settings,
        lr=schedule.lr,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        **how,
    )


def _set_rates(optimiser: torch.optim.Optimizer, decay: float) -> None:
    for group in optimiser.param_groups:
        rate = group["peak"] * decay
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
