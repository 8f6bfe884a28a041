"""The plain loop in place of the engine's training, so that it can train any method."""

from collections.abc import Callable, Iterable, Sequence

from lightning_fabric import Fabric
from torch import Tensor

from dafuse.backbones.adapter import Adapter
from dafuse.backbones.attach import Attachment
from dafuse.backbones.depths import Depths
from dafuse.backbones.network import Network
from dafuse.benchmarks.plain_loop import PlainAdapters, pillow_batches, plain_features, plain_fit
from dafuse.data.batches import Batch, Loader
from dafuse.data.dataset import ImageSet
from dafuse.data.stream import Task
from dafuse.engine.trainer import Trainer
from dafuse.methods.contract import Loss
from dafuse.methods.schedule import Group, Schedule

Feed = Callable[[Task, ImageSet, int, int], Iterable[Batch]]  # task, images, batch size, epoch


class PlainTrainer(Trainer):
    """Trains adapters with `plain_fit` and computes features with `plain_features`.

    The rest is the engine's: test batches, and attachments other than an adapter.
    """

    def __init__(
        self, network: Network, loader: Loader, fabric: Fabric, seed: int, feed: Feed
    ) -> None:
        super().__init__(network, loader, fabric, seed, compiled=False)
        self.feed = feed
        self._in_training: PlainAdapters | None = None

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
        assert isinstance(attached, Adapter)  # the plain loop knows nothing else
        trained = images or task.train
        modules = PlainAdapters(attached)
        own = {id(parameter) for parameter in attached.parameters()}
        others = [
            Group([p for p in group.parameters if id(p) not in own], group.rate) for group in groups
        ]
        self._in_training = modules
        try:
            with self.phase("train", schedule.epochs * len(trained)):
                losses = plain_fit(
                    loss,
                    [Group(list(modules.parameters())), *others],
                    lambda epoch: self.feed(
                        task, trained, schedule.batch_size, epochs_before + epoch
                    ),
                    schedule,
                    self.device,
                    after_step,
                )
        finally:
            self._in_training = None
        attached.set(modules.tensors())
        self.epoch_losses += [sum(epoch) / len(epoch) for epoch in losses]

    def encode(
        self,
        images_B3SS: Tensor,
        attached: Attachment | None,
        network: Network | None = None,
        depths: Depths = "last",
        prompts: Tensor | None = None,
    ) -> Tensor:
        if depths != "last":
            return super().encode(images_B3SS, attached, network, depths, prompts)
        vit = (network or self.network).timm
        if self._in_training is not None:
            return plain_features(vit, images_B3SS, self._in_training.branch)
        if isinstance(attached, Adapter):
            return plain_features(vit, images_B3SS, attached.branch)
        return super().encode(images_B3SS, attached, network, prompts=prompts)


def pillow_feed(loader: Loader, workers: int) -> Feed:
    """Feed the loader's images through Pillow, in worker processes that start in each epoch."""
    augmentation = loader.dataset.augmentation
    return lambda task, images, batch_size, epoch: pillow_batches(
        images, loader.preprocessing, augmentation, batch_size, workers
    )
