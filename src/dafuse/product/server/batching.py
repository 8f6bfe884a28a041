"""The work of many requests, shared out fairly: images to predict, and to decode for a lesson.

A single thread predicts, in batches. While one is computed, the next one gathers: a single client
never waits for others, and many clients fill the batches. When the queue is full, a request is
refused.

The next part, such as an image, is that of the request which then will have had the least since
it came: a request of a single image overtakes one of many large ones, and waits no longer than
for the part that is being done.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dafuse.data.decoding import read_all
from dafuse.data.images import UnreadableImage, reduced
from dafuse.product.server.metrics import Metrics
from dafuse.product.server.security import overloaded
from dafuse.product.server.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import numpy as np

    from dafuse.product.predictor import Prediction

    Answer = Prediction | UnreadableImage
    Decoded = np.ndarray | UnreadableImage

IMAGES = 32  # in a batch, at most
PIXELS = 2**24  # in a batch, unless a single image has more
LEAST = 2**17  # pixels that take as long to decode as the network takes for an image
Part = TypeVar("Part")
Found = TypeVar("Found")


class ServedVersion(Protocol):
    """One version of a model."""

    def answers(self, images: Sequence[Any], top: int) -> "Iterator[Answer]": ...


class Served(Protocol):
    """A model that is served: a `Classifier`, or another with the same answers."""

    @property
    def classes(self) -> list[str]: ...

    @property
    def model(self) -> ServedVersion:
        """The version that answers now. It never changes."""

    def follow(self) -> None:
        """Read the model again if another process has changed it."""


@dataclass(eq=False)
class Asked:
    """A request for answers. All of them come from the version that gave the first one."""

    top: int
    model: ServedVersion | None = None


class Batcher:
    """The images that wait to be predicted, and those that wait to be decoded for a lesson."""

    def __init__(self, served: Served, most_waiting: int, metrics: Metrics) -> None:
        self._served, self._most, self._metrics = served, most_waiting, metrics
        self._predicting: Turns[tuple[Upload, Asked], Answer] = Turns(self._answers, IMAGES, PIXELS)
        self._decoding: Turns[Upload, Decoded] = Turns(_decoded)
        metrics.gauge("queued_pictures", lambda: len(self._predicting))
        metrics.gauge("undecoded_pictures", lambda: len(self._decoding))

    def has_place_for(self, images: int) -> bool:
        return len(self._predicting) + images <= self._most

    async def predict(self, images: Sequence[Upload], top: int) -> "list[Answer]":
        """Return an answer for each image; raise what the model raised for one of them."""
        if not self.has_place_for(len(images)):
            raise overloaded()
        asked = Asked(top)
        return await self._predicting.done([((one, asked), _cost(one)) for one in images])

    async def decode(self, images: Sequence[Upload]) -> "list[Decoded]":
        """Return the pixels of each image, of large ones reduced, or why there are none."""
        return await self._decoding.done([(one, _cost(one)) for one in images])

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[None]":
        """Do what comes, until the block ends."""
        async with self._decoding.running("decode"), self._predicting.running("predict"):
            yield

    def _answers(self, batch: list[tuple[Upload, Asked]]) -> "list[Answer]":
        self._served.follow()
        now = self._served.model
        for _, asked in batch:
            asked.model = asked.model or now
        found: dict[int, Answer] = {}
        # nearly always one: the model, unless it was changed after a request's first images
        for model in {id(asked.model): asked.model for _, asked in batch}.values():
            rows = [row for row, (_, asked) in enumerate(batch) if asked.model is model]
            data, top = [batch[row][0].data for row in rows], max(batch[row][1].top for row in rows)
            assert model is not None
            found.update(zip(rows, model.answers(data, top), strict=True))
            self._metrics.count("batches_total")
        self._metrics.count("predicted_pictures_total", len(batch))
        return [found[row] for row in range(len(batch))]


def _cost(image: Upload) -> int:
    return max(image.pixels, LEAST)


def _decoded(images: list[Upload]) -> "list[Decoded]":
    return read_all([one.data for one in images], reduced, threads=1)


@dataclass(frozen=True, order=True)
class _Waiting(Generic[Part, Found]):
    turn: float  # where its request began, and the cost of its parts up to this one
    number: int
    part: Part = field(compare=False)
    cost: float = field(compare=False)
    answer: "asyncio.Future[Found]" = field(compare=False)


class Turns(Generic[Part, Found]):
    """A queue of parts, and a thread that does several of them at once.

    Args:
        do: answers each of some parts
        together: how many parts are done at once, at most
        cost: how much they may cost together, unless a single one costs more
    """

    def __init__(
        self,
        do: Callable[[list[Part]], Sequence[Found]],
        together: int = 1,
        cost: float = 0,
    ) -> None:
        self._do, self._together, self._cost = do, together, cost
        self._queue: list[_Waiting[Part, Found]] = []
        self._numbers = count()
        self._turn = 0.0  # of what was taken last: where the next request begins
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    async def done(self, parts: Sequence[tuple[Part, float]]) -> list[Found]:
        """Return an answer for each part of a request, which stand beside their costs.

        An error of one of them is raised.
        """
        loop, turn, answers = asyncio.get_running_loop(), self._turn, []
        for part, cost in parts:
            turn += cost
            waiting = _Waiting(turn, next(self._numbers), part, cost, loop.create_future())
            heappush(self._queue, waiting)
            answers.append(waiting.answer)
        self._filled.set()
        return list(await asyncio.gather(*answers))

    @asynccontextmanager
    async def running(self, name: str) -> "AsyncIterator[None]":
        """Do what comes, until the block ends, in a thread of this name."""
        with ThreadPoolExecutor(1, name) as thread:
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
            batch = list(self._next())
            if not self._queue:
                self._filled.clear()
            if not batch:
                continue
            parts = [one.part for one in batch]
            try:
                found = await loop.run_in_executor(thread, self._attempt, parts)
            except asyncio.CancelledError:  # or the requests would wait for ever
                for one in batch:
                    one.answer.cancel()
                raise
            for one, answer in zip(batch, found, strict=True):
                if one.answer.done():  # nobody waits for it any more
                    continue
                if isinstance(answer, _Failed):
                    one.answer.set_exception(answer.error)
                else:
                    one.answer.set_result(answer)

    def _attempt(self, parts: list[Part]) -> "Sequence[Found | _Failed]":
        try:
            return self._do(parts)
        except Exception as error:
            if len(parts) == 1:
                return [_Failed(error)]
            # one part must not spoil the answers of others that happened to come with it
            return [self._attempt([one])[0] for one in parts]

    def _next(self) -> Iterator[_Waiting[Part, Found]]:
        taken, cost = 0, 0.0
        while self._queue and taken < self._together:
            cost += self._queue[0].cost
            if taken and cost > self._cost:
                return
            one = heappop(self._queue)
            if one.answer.done():
                cost -= one.cost
                continue
            self._turn = max(self._turn, one.turn)
            taken += 1
            yield one


@dataclass(frozen=True)
class _Failed:
    error: Exception
