"""How long work says how far it is: labelled bars, silent by default."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Batch = tuple[Any, Any]  # images and labels


class Bar:
    """One piece of work of known length. The silent bar only counts."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def advance(self, steps: int = 1, note: str = "") -> None:
        self.done += steps

    def over(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches as they are, each counted by its number of labels."""
        for images, labels in batches:
            yield images, labels
            self.advance(len(labels))


class Progress:
    """Makes bars. This one is silent; `dafuse.engine.display` draws them."""

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        yield Bar(total)

    def say(self, line: str) -> None:
        """A line for the user that stays (a warning, a result)."""

    def waits(self, line: str) -> None:
        """Something else must end first, which the line tells; until `goes_on`."""
        self.say(line)

    def goes_on(self) -> None:
        """Nothing is waited for any more, if anything was."""
