"""One task's training loop, and the rest of what methods ask of the engine."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F

from dafuse.data.batches import Loader
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.errors import DafuseError
from dafuse.methods.contract import Batches, Loss, Schedule
from dafuse.progress import Bar, Progress
from dafuse.seeds import derive, torch_generator
from dafuse.vit.attach import Attachment
from dafuse.vit.backbone import FrozenViT


class Trainer:
    """Runs a method's forward and backward passes on a device, in a precision, with progress.

    Implements `methods.contract.Trainer`.
    """

    def __init__(
        self,
        vit: FrozenViT,
        loader: Loader,
        fabric: Fabric,
        seed: int,
        progress: Progress | None = None,
        compiled: bool | None = False,  # None: on a GPU
    ) -> None:
        self.device = fabric.device
        self.vit = vit.to(self.device)
        self.loader, self.fabric, self.seed = loader, fabric, seed
        self.progress = progress or Progress()
        self.inference_batch = 256 if self.device.type == "cuda" else 64
        self.seconds: dict[str, float] = {}  # of each phase of the current task
        self.images: dict[str, int] = {}  # that went through in it
        self.epoch_losses: list[float] = []
        self.compiled = self.device.type == "cuda" if compiled is None else compiled
        self._compiled = torch.compile(vit, dynamic=False)
        # on a GPU, small batches take longer to launch than to compute: record and replay them
        self._replayed = torch.compile(vit, dynamic=False, mode="reduce-overhead")
        self._full_batch = self.inference_batch  # what compiled code is for

    def fit(
        self,
        task: Task,
        attached: Attachment,
        loss: Loss,
        parameters: Iterable[nn.Parameter],
        schedule: Schedule,
    ) -> None:
        optimiser = torch.optim.SGD(
            parameters,
            lr=schedule.lr,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
            foreach=True,
        )
        epochs, size = schedule.epochs, schedule.batch_size
        steps = epochs * math.ceil(len(task.train) / size)
        images_seen = epochs * len(task.train)
        attached.train()
        self._full_batch = size
        with self._own_randomness(task), self.phase("train", images_seen, steps) as bar:
            for epoch in range(epochs):
                for group in optimiser.param_groups:
                    group["lr"] = schedule.lr * (1 + math.cos(math.pi * epoch / epochs)) / 2
                generator = torch_generator(self.seed, "augmentation", task.index, epoch)
                losses = []
                for images, labels in self.loader.train_batches(task.train, size, generator):
                    value = loss(self.encode(images, attached), labels)
                    optimiser.zero_grad(set_to_none=True)
                    self.fabric.backward(value)
                    optimiser.step()
                    losses.append(value.detach())
                    bar.advance(note=f"epoch {epoch + 1}/{epochs}")
                self.epoch_losses.append(self._mean_finite(losses, task, epoch))
        optimiser.zero_grad(set_to_none=True)
        self._full_batch = self.inference_batch
        attached.eval()

    def encode(self, images_B3SS: Tensor, attached: Attachment | None) -> Tensor:
        count = len(images_B3SS)
        if self.compiled:
            images_B3SS = self._padded(images_B3SS)
        if attached is not None:
            attached.begin(len(images_B3SS))
        with self.fabric.autocast():
            if not self.compiled:
                return self.vit(images_B3SS, attached).float()
            if attached is not None and not attached.replay:
                return self._compiled(images_B3SS, attached).float()[:count]
            torch.compiler.cudagraph_mark_step_begin()
            # the output's memory is written again by the next call
            return self._replayed(images_B3SS, attached).float()[:count].clone()

    def _padded(self, images_B3SS: Tensor) -> Tensor:
        """Compiled code is for one batch size: an epoch's last batch is filled up with zeros."""
        missing = max(0, self._full_batch - len(images_B3SS))
        return F.pad(images_B3SS, (0, 0, 0, 0, 0, 0, 0, missing))

    @torch.no_grad()
    def features(self, images: ImageSet, attached: Attachment | None) -> tuple[Tensor, Tensor]:
        parts: list[tuple[Tensor, Tensor]] = []
        with self.phase("statistics", len(images), len(images)) as bar:
            for batch, labels in bar.over(self.test_batches(images)):
                parts.append((self.encode(batch, attached), labels))
        return torch.cat([feats for feats, _ in parts]), torch.cat([labels for _, labels in parts])

    def test_batches(self, images: ImageSet, batch_size: int | None = None) -> Batches:
        return self.loader.test_batches(images, batch_size or self.inference_batch)

    @contextmanager
    def phase(self, name: str, images: int = 0, steps: int = 0) -> Iterator[Bar]:
        self._wait_for_device()
        start = time.perf_counter()
        with self.progress.bar(name, steps) as bar:
            yield bar
        self._wait_for_device()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if images:
            self.images[name] = self.images.get(name, 0) + images

    def begin_task(self) -> None:
        """Forget the last task's times and losses."""
        self.seconds, self.images, self.epoch_losses = {}, {}, []

    @contextmanager
    def _own_randomness(self, task: Task) -> Iterator[None]:
        """Dropout draws from torch's global generator: lend it this task's seed."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(derive(self.seed, "dropout", task.index))
            yield

    def _mean_finite(self, losses: list[Tensor], task: Task, epoch: int) -> float:
        """The epoch's mean loss. Looked at once an epoch, so that the device never waits."""
        values = torch.stack(losses).float().cpu()
        wrong = (~values.isfinite()).nonzero()
        if len(wrong):
            step = int(wrong[0])
            raise DafuseError(
                f"the loss became {values[step]} in task {task.number}, epoch {epoch + 1}, "
                f"step {step + 1}; try a smaller --method.lr. Finished tasks are saved."
            )
        return float(values.mean())

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
