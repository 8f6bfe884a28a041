"""How much is too much, and how that is said: a status and one sentence."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from dafuse.errors import DafuseError


class Refusal(Exception):
    """A request that is not served; it is answered with this status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass(frozen=True)
class Limits:
    body_mb: float = 32  # of one request
    files: int = 64  # in one request
    pixels: int = 25_000_000  # of one picture: decoding it takes some thirty times as many bytes
    queue: int = 256  # pictures that wait to be predicted
    staged: int = 500  # pictures that wait to be learned

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 < getattr(self, field.name) < math.inf:
                raise DafuseError(f"the limit {field.name} must be a number above 0")
        if self.queue < self.files:
            raise DafuseError(
                f"a queue of {self.queue} has no place for the {self.files} files that a request "
                "may have: raise the one or lower the other"
            )

    @property
    def body(self) -> int:
        """Bytes of one request."""
        return int(self.body_mb * 2**20)

    @property
    def arriving(self) -> int:
        """Bytes of all requests that are being read or wait to be predicted."""
        return 8 * self.body


class Memory:
    """Bytes of uploads that are held at this moment, over all requests."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """For one request: a function that takes more bytes, all given back in the end."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.held + count > self.most:
                raise overloaded()
            self.held += count
            taken += count

        try:
            yield take
        finally:
            self.held -= taken


def overloaded() -> Refusal:
    return Refusal(503, "too many pictures are waiting: try again in a moment")
