"""Batches of the pictures that wait, predicted by one thread in the order in which they came.

While a batch is computed, the next one gathers: a single client never waits for others, and many
clients fill the batches. When the queue is full, a request is refused.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dafuse.product.server.metrics import Metrics
from dafuse.product.server.security import overloaded
from dafuse.product.server.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dafuse.data.images import UnreadableImage
    from dafuse.product.predictor import Prediction

    Answer = Prediction | UnreadableImage

PICTURES = 32  # in a batch, at most
PIXELS = 2**24  # in a batch, unless a single picture has more


class Served(Protocol):
    """What is served: a `Classifier`, or another that answers in the same way."""

    @property
    def classes(self) -> list[str]: ...

    def answers(self, images: Sequence[Any], top: int) -> "Iterator[Answer]": ...

    def follow(self) -> None:
        """Read the model again if another process has changed it."""


@dataclass(frozen=True)
class _Waiting:
    picture: Upload
    top: int
    answer: "asyncio.Future[Answer]"


class Batcher:
    """A queue of pictures, and the work of predicting them."""

    def __init__(self, served: Served, most_waiting: int, metrics: Metrics) -> None:
        self._served, self._most, self._metrics = served, most_waiting, metrics
        self._queue: deque[_Waiting] = deque()
        self._filled = asyncio.Event()
        metrics.gauge("queued_pictures", lambda: len(self._queue))

    def has_place_for(self, pictures: int) -> bool:
        return len(self._queue) + pictures <= self._most

    async def predict(self, pictures: Sequence[Upload], top: int) -> "list[Answer]":
        """Return an answer for each picture; raise what the model raised for one of them."""
        if not self.has_place_for(len(pictures)):
            raise overloaded()
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(picture, top, loop.create_future()) for picture in pictures]
        self._queue.extend(waiting)
        self._filled.set()
        return list(await asyncio.gather(*(one.answer for one in waiting)))

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[None]":
        """Predict what comes, until the block ends."""
        with ThreadPoolExecutor(1, "predict") as thread:
            work = asyncio.create_task(self._work(thread))
            try:
                yield
            finally:
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
                for one in self._queue:
                    one.answer.cancel()

    async def _work(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._filled.wait()
            batch = list(self._next_batch())
            if not self._queue:
                self._filled.clear()
            if not batch:
                continue
            found = await loop.run_in_executor(thread, self._answers, batch)
            self._metrics.count("batches_total")
            self._metrics.count("predicted_pictures_total", len(batch))
            for one, answer in zip(batch, found, strict=True):
                if one.answer.done():  # nobody waits for it any more
                    continue
                if isinstance(answer, _Failed):
                    one.answer.set_exception(answer.error)
                else:
                    one.answer.set_result(answer)

    def _next_batch(self) -> Iterator[_Waiting]:
        count, pixels = 0, 0
        while self._queue and count < PICTURES:
            pixels += self._queue[0].picture.pixels
            if count and pixels > PIXELS:
                return
            one = self._queue.popleft()
            if not one.answer.done():
                count += 1
                yield one

    def _answers(self, batch: list[_Waiting]) -> "list[Answer | _Failed]":
        try:
            self._served.follow()
            data, top = [one.picture.data for one in batch], max(one.top for one in batch)
            return list(self._served.answers(data, top))
        except Exception as error:
            if len(batch) == 1:
                return [_Failed(error)]
            # one picture must not spoil the answers of others that happened to come with it
            return [self._answers([one])[0] for one in batch]


@dataclass(frozen=True)
class _Failed:
    error: Exception
