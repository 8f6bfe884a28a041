"""Features at several depths of a network: the parts to read at each level, and their order.

A level is a block of a transformer, or a stage of a network with stages. At each level one vector
stands for the whole image, and its tokens (or positions) have a mean and a std over the image. The
parts are concatenated. No torch here.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

Depths = Literal["last", "top", "all", "moments"]
DEPTHS: tuple[Depths, ...] = get_args(Depths)
# for the whole image: the class token, or the input of the network's own classifier; over the
# image: the mean and the std of each column of its tokens
What = Literal["cls", "pooled", "mean", "std"]
WHOLE: tuple[What, ...] = ("cls", "pooled")  # from the network, not averaged here


class FeaturePart(NamedTuple):
    """A vector read at one level."""

    level: int
    what: What
    width: int  # number of columns


class Level(NamedTuple):
    """The vectors that a network offers at one level."""

    whole: What  # the one for the whole image
    whole_width: int
    width: int  # columns of a token


def parts_of(depths: Depths, levels: Sequence[Level]) -> list[FeaturePart]:
    """Return the parts to read from a network with these levels, in order.

    - last: the vector for the whole image at the last level;
    - top: the same at the last three levels, and the mean of the last tokens;
    - all: the same at every level, and the mean of the last tokens;
    - moments: the same, and mean and std of the tokens, at the last three quarters of the levels.
    """
    last = len(levels) - 1

    def whole(number: int) -> FeaturePart:
        return FeaturePart(number, levels[number].whole, levels[number].whole_width)

    def tokens(number: int, what: What) -> FeaturePart:
        return FeaturePart(number, what, levels[number].width)

    if depths == "last":
        return [whole(last)]
    if depths == "moments":
        read = range(len(levels) // 4, len(levels))
        parts = [part for n in read for part in (whole(n), tokens(n, "mean"), tokens(n, "std"))]
    else:
        first = max(0, last - 2) if depths == "top" else 0
        parts = [*map(whole, range(first, last + 1)), tokens(last, "mean")]
    return list(dict.fromkeys(parts))  # a mean that stands for the whole image is read once


def levels_of_tokens(depth: int, width: int) -> list[Level]:
    """Return the levels of a plain transformer: every block has a class token."""
    return [Level("cls", width, width)] * depth


def place_of(part: FeaturePart, parts: Sequence[FeaturePart]) -> slice:
    """Return the columns of this part among these parts."""
    start = sum(before.width for before in parts[: parts.index(part)])
    return slice(start, start + part.width)


def width_of(parts: Sequence[FeaturePart]) -> int:
    return sum(part.width for part in parts)
