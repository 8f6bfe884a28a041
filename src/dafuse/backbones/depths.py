"""Features at several depths of a network: what is read at which level, and in what order.

A level is a block of a transformer, or a stage of a network that has stages. At each, one vector is
read that stands for the whole image, and the mean and the standard deviation of its tokens (or
positions) over the image. All that is read is laid side by side. No torch here.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

Depths = Literal["last", "top", "all", "moments"]
DEPTHS: tuple[Depths, ...] = get_args(Depths)
# for the whole image: the class token; what the network's own classifier would be given; over the
# image, of each number of a token: its mean and its standard deviation
What = Literal["cls", "pooled", "mean", "std"]
WHOLE: tuple[What, ...] = ("cls", "pooled")  # made by the network, not averaged by us


class Part(NamedTuple):
    """What is read at one level."""

    level: int
    what: What
    width: int  # how many numbers


class Level(NamedTuple):
    """What a network offers to read at one level."""

    whole: What  # what stands for the whole image
    whole_width: int
    width: int  # numbers of a token


def parts_of(depths: Depths, levels: Sequence[Level]) -> list[Part]:
    """What is read of a network with these levels, in order.

    - last: what stands for the whole image at the last level;
    - top: the same of the last three levels, and the mean of the last tokens;
    - all: the same of every level, and the mean of the last tokens;
    - moments: the same, and the mean and the standard deviation of the tokens, of the last three
      quarters of the levels.
    """
    last = len(levels) - 1

    def whole(number: int) -> Part:
        return Part(number, levels[number].whole, levels[number].whole_width)

    def tokens(number: int, what: What) -> Part:
        return Part(number, what, levels[number].width)

    if depths == "last":
        return [whole(last)]
    if depths == "moments":
        read = range(len(levels) // 4, len(levels))
        parts = [part for n in read for part in (whole(n), tokens(n, "mean"), tokens(n, "std"))]
    else:
        first = max(0, last - 2) if depths == "top" else 0
        parts = [*map(whole, range(first, last + 1)), tokens(last, "mean")]
    return list(dict.fromkeys(parts))  # where the mean stands for the whole, it is read once


def levels_of_tokens(depth: int, width: int) -> list[Level]:
    """Those of a plain transformer: every block has a class token."""
    return [Level("cls", width, width)] * depth


def place_of(part: Part, parts: Sequence[Part]) -> slice:
    """The columns where this part lies among these."""
    start = sum(before.width for before in parts[: parts.index(part)])
    return slice(start, start + part.width)


def width_of(parts: Sequence[Part]) -> int:
    return sum(part.width for part in parts)
