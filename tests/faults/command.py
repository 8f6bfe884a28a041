"""A dafuse command in a process group of its own, as a shell would start it, but quicker.

    ended = run("predict", model, picture)
    running = start("learn", model, photos, before=partial(die_at, 17))
    running.signal(SIGKILL)

Each command is forked from a process that has imported the light core already (`preload`: and
more), so that it takes a tenth of a second instead of half a second; what it runs is the command
line's own `main`. It reads nothing from the terminal, and what it prints is returned.
"""

import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

PRELOADED = [
    "numpy",
    "onnxruntime",
    "dafuse.cli",
    "dafuse.commands.change",
    "dafuse.commands.evaluate",
    "dafuse.commands.export",
    "dafuse.commands.learn",
    "dafuse.commands.options",
    "dafuse.commands.predict",
    "dafuse.product.classifier",
    "dafuse.product.export",
    "dafuse.product.lesson",
    "dafuse.product.predictor",
]
PATIENCE = 300.0  # seconds after which a command hangs
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line sets it before numpy
_fork = get_context("forkserver")


def preload(*modules: str) -> None:
    """Let commands be forked from a process that has these, too; before the first command."""
    PRELOADED.extend(modules)
    _fork.set_forkserver_preload(PRELOADED)


preload()


class Hangs(Exception):
    """A command that did not end; its process group was killed."""


@dataclass(frozen=True)
class Ended:
    """A command's status and output."""

    status: int  # of the process; minus the number of the signal that killed it
    out: str
    err: str

    @property
    def has_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.out + self.err

    @property
    def is_refusal(self) -> bool:
        """Tell whether it ended with one sentence on standard error, as bad input should."""
        return self.status == 2 and self.err.startswith("dafuse: ") and not self.has_traceback


class Running:
    """A command that was started."""

    def __init__(self, process: ForkServerProcess, said: tempfile.TemporaryDirectory[str]) -> None:
        self._process, self._said = process, said

    @property
    def pid(self) -> int:
        """Number of the process, and of its group."""
        pid = self._process.pid
        assert pid is not None
        return pid

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        """Send a signal to the whole group; one that has ended already gets none."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Wait until it ends, or kill it and raise `Hangs`."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.signal(signal.SIGKILL)
            self._process.join()
            raise Hangs(f"it did not end in {seconds:.0f} s: {self.said()}")
        out, err = self.said()
        self._said.cleanup()
        return Ended(self._process.exitcode, out, err)

    def said(self) -> tuple[str, str]:
        """Return what stands on standard output and on standard error so far."""
        files = [Path(self._said.name, name) for name in ("out", "err")]
        out, err = (file.read_text(errors="replace") if file.exists() else "" for file in files)
        return out, err


def start(
    *arguments: object,
    folder: Path | None = None,
    before: Callable[[], None] | None = None,
    environment: dict[str, str] | None = None,
) -> Running:
    """Start a command.

    Args:
        arguments: as on the command line, without the word dafuse
        folder: the working directory
        before: called in the new process before the command; a function of a module
        environment: of the command; default: that of the first command
    """
    said = tempfile.TemporaryDirectory(prefix="dafuse-said-")
    words = [str(argument) for argument in arguments]
    process = _fork.Process(target=_main, args=(words, said.name, folder, before, environment))
    process.start()
    return Running(process, said)


def run(
    *arguments: object,
    folder: Path | None = None,
    before: Callable[[], None] | None = None,
    environment: dict[str, str] | None = None,
) -> Ended:
    """`start`, and wait for its end."""
    return start(*arguments, folder=folder, before=before, environment=environment).wait()


def _main(
    words: list[str],
    said: str,
    folder: Path | None,
    before: Callable[[], None] | None,
    environment: dict[str, str] | None,
) -> None:
    os.setsid()
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    for number, name in ((0, os.devnull), (1, f"{said}/out"), (2, f"{said}/err")):
        opened = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    if folder is not None:
        os.chdir(folder)
    from dafuse.cli import main

    if before is not None:
        before()
    main(words)
