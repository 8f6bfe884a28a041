"""The places where a module may join a network: all of them in a ViT, fewer in others."""

from torch import Tensor, nn


class Attachment(nn.Module):
    """Does nothing anywhere: a module overrides the places it uses."""

    reads_cls_alone = True  # of the tokens after the last block
    compiles = True  # the shapes of what it holds stay the same from task to task

    @property
    def copies(self) -> int:
        """How many versions of each image go through the network."""
        return 1

    def begin(self, batch: int) -> None:
        """Called before each forward pass of a batch of this size."""

    def tokens(self, x_BND: Tensor) -> Tensor:
        """The token sequence before the first block; extra tokens go right after the CLS token."""
        return x_BND

    def prefix(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values [B or 1, P, D] put before those of the layer's attention."""
        return None

    def branch(self, layer: int, h_BND: Tensor) -> Tensor | None:
        """What is added beside the layer's MLP; ``h`` is the residual stream before its norm."""
        return None

    def readout(self, x_BND: Tensor) -> Tensor:
        """The features [B, ...] made of the tokens after the final norm: the CLS token."""
        return x_BND[:, 0]
