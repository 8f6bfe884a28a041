"""Features at several depths of a ViT: which tokens of which blocks are read, and in what order.

The tokens after a block are normalised before anything is read of them: those of the last block by
the network's own norm, those of inner blocks by a LayerNorm without weights. All that is read is
laid side by side, a part of the network's width for each. No torch here.
"""

from typing import Literal, NamedTuple, get_args

Depths = Literal["last", "top", "all", "moments"]
DEPTHS: tuple[Depths, ...] = get_args(Depths)


class Part(NamedTuple):
    """What is read of one block's tokens."""

    block: int
    what: Literal["cls", "mean", "std"]  # the CLS token; over the patches, of each number


def parts_of(depths: Depths, blocks: int) -> list[Part]:
    """What is read of a network of so many blocks, in order.

    - last: the last block's CLS token;
    - top: the CLS tokens of the last three blocks, and the mean of the last patches;
    - all: the CLS token of every block, and the mean of the last patches;
    - moments: CLS token, mean and standard deviation of the patches, of the last three quarters
      of the blocks.
    """
    last = blocks - 1
    if depths == "last":
        return [Part(last, "cls")]
    if depths == "moments":
        first = blocks // 4
        return [Part(b, what) for b in range(first, blocks) for what in ("cls", "mean", "std")]
    first = max(0, blocks - 3) if depths == "top" else 0
    return [*(Part(b, "cls") for b in range(first, blocks)), Part(last, "mean")]
