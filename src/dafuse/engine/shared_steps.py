"""A training step that several processes share: the loss as a module, and the batch's dropout.

Each process computes the loss of its own images. Weighted by their number, the mean of the
gradients over the processes, which DDP takes, is the gradient of the whole batch's loss. So a loss
must be a mean over images, beside terms that depend on no image; a loss that compares images of a
batch asks the engine for the `whole_batch`. A process without an image of its own in a last, small
batch computes on none: its gradients are zero.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dafuse.engine.ranks import Ranks
from dafuse.methods.contract import Loss
from dafuse.methods.schedule import Group


class SharedLoss(nn.Module):
    """A method's loss with the parameters that it trains, for DDP."""

    def __init__(self, loss: Loss, groups: Sequence[Group], device: torch.device) -> None:
        super().__init__()
        self.loss, self.device_type = loss, device.type
        self.trained = nn.ParameterList(p for group in groups for p in group.parameters)

    def forward(self, images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        # only the networks run in the run's precision, as on one device (`Engine.encode`)
        with torch.autocast(self.device_type, enabled=False):
            value = self.loss(images_B3SS, labels_B)
        used = leaves(value)
        for parameter in self.trained:
            if parameter not in used:  # DDP waits for the gradient of each
                value = value + 0 * parameter.sum()
        return value


def leaves(value: Tensor) -> set[Tensor]:
    """Return the parameters that a value was computed from."""
    found, nodes = set[Tensor](), {value.grad_fn}
    left = list(nodes)
    while left:
        node = left.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            found.add(node.variable)
        following = {after for after, _ in node.next_functions} - nodes
        nodes |= following
        left += following
    return found


class WholeBatchDropout(TorchFunctionMode):
    """Dropout drawn for the whole batch in each process, which keeps its own images' rows.

    So the numbers drawn are those of a run on one device.
    """

    def __init__(self, own: slice, images: int) -> None:
        super().__init__()
        self.own, self.images = own, images

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is not F.dropout:
            return function(*args, **kwargs)
        return self._dropout(*args, **kwargs)

    def _dropout(
        self, x_B: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return x_B
        ones = torch.ones(self.images, *x_B.shape[1:], dtype=x_B.dtype, device=x_B.device)
        return x_B * F.dropout(ones, p, True)[self.own]


def share_loss(loss: Loss, groups: Sequence[Group], ranks: Ranks) -> nn.Module:
    """Wrap the loss in DDP, which reduces gradients while others are still computed."""
    module = SharedLoss(loss, groups, ranks.fabric.device)
    # compiled networks stay whole: DDP would cut them at its buckets
    torch._dynamo.config.optimize_ddp = False
    warnings.filterwarnings("ignore", message="Grad strides do not match")  # of small tensors
    shared: nn.Module = ranks.fabric.setup_module(module, _reapply_compile=False)
    return shared
