"""The places where a module can attach to a network: all of them in a ViT, fewer in others.

Prompts [B, ...] have an entry for each image of the batch. They are an argument of the forward
pass, which hands them to the places that may use them.
"""

from torch import Tensor, nn


class Attachment(nn.Module):
    """A module that does nothing; subclasses override the places they use."""

    reads_cls_alone = True  # no other token after the last block
    compiles = True  # its tensors keep their shapes from task to task

    @property
    def copies(self) -> int:
        """The number of versions of each image that pass through the network."""
        return 1

    def begin(self, batch: int) -> None:
        """Prepare for a forward pass of a batch of this size, after it was filled up."""

    def tokens(self, x_BND: Tensor, prompts: Tensor | None = None) -> Tensor:
        """Return the tokens for the first block; extra tokens go right after the CLS token."""
        return x_BND

    def prefix(self, layer: int, prompts: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        """Return keys and values [B or 1, P, D] to put before those of the layer's attention."""
        return None

    def branch(self, layer: int, h_BND: Tensor) -> Tensor | None:
        """Return what is added beside the layer's MLP; ``h`` is the stream before its norm."""
        return None

    def readout(self, x_BND: Tensor, prompts: Tensor | None = None) -> Tensor:
        """Return the features [B, ...], given the tokens after the final norm: the CLS token."""
        return x_BND[:, 0]
