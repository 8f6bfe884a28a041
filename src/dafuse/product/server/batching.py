"""Batches of the pictures that wait, predicted by one thread, and the decoding of those to learn.

While a batch is computed, the next one gathers: a single client never waits for others, and many
clients fill the batches. When the queue is full, a request is refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dafuse.data.images import UnreadableImage, reduced
from dafuse.data.pictures import read_all
from dafuse.product.server.metrics import Metrics
from dafuse.product.server.security import overloaded
from dafuse.product.server.turns import Turns
from dafuse.product.server.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import numpy as np

    from dafuse.product.predictor import Prediction

    Answer = Prediction | UnreadableImage
    Decoded = np.ndarray | UnreadableImage

PICTURES = 32  # in a batch, at most
PIXELS = 2**24  # in a batch, unless a single picture has more
LEAST = 2**17  # pixels that take as long to decode as the network takes for a picture


class Served(Protocol):
    """What is served: a `Classifier`, or another that answers in the same way."""

    @property
    def classes(self) -> list[str]: ...

    def answers(self, images: Sequence[Any], top: int) -> "Iterator[Answer]": ...

    def follow(self) -> None:
        """Read the model again if another process has changed it."""


@dataclass(frozen=True)
class _Asked:
    picture: Upload
    top: int


class Batcher:
    """The pictures that wait to be predicted, and those that wait to be decoded for a lesson."""

    def __init__(self, served: Served, most_waiting: int, metrics: Metrics) -> None:
        self._served, self._most, self._metrics = served, most_waiting, metrics
        self._asked: Turns[_Asked, Answer] = Turns(self._answers, PICTURES, PIXELS)
        self._sent: Turns[Upload, Decoded] = Turns(_decoded)
        metrics.gauge("queued_pictures", lambda: len(self._asked))
        metrics.gauge("undecoded_pictures", lambda: len(self._sent))

    def has_place_for(self, pictures: int) -> bool:
        return len(self._asked) + pictures <= self._most

    async def predict(self, pictures: Sequence[Upload], top: int) -> "list[Answer]":
        """Return an answer for each picture; raise what the model raised for one of them."""
        if not self.has_place_for(len(pictures)):
            raise overloaded()
        return await self._asked.done([(_Asked(one, top), _cost(one)) for one in pictures])

    async def decode(self, pictures: Sequence[Upload]) -> "list[Decoded]":
        """Return the pixels of each picture, of large ones reduced, or why there are none."""
        return await self._sent.done([(one, _cost(one)) for one in pictures])

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[None]":
        """Do what comes, until the block ends."""
        async with self._sent.running("decode"), self._asked.running("predict"):
            yield

    def _answers(self, batch: list[_Asked]) -> "list[Answer]":
        self._served.follow()
        data, top = [one.picture.data for one in batch], max(one.top for one in batch)
        found = list(self._served.answers(data, top))
        self._metrics.count("batches_total")
        self._metrics.count("predicted_pictures_total", len(batch))
        return found


def _cost(picture: Upload) -> int:
    return max(picture.pixels, LEAST)


def _decoded(pictures: list[Upload]) -> "list[Decoded]":
    return read_all([one.data for one in pictures], reduced, threads=1)
