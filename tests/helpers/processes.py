"""dafuse in a process of its own: a clean environment, without some packages, killed at a call."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from dafuse.engine.config import RunConfig
from faults import command

# what dafuse depends on beside numpy and Pillow; extras, too, but for onnxruntime and the server's
HEAVY = ["torch", "torchvision", "timm", "lightning_fabric", "rich", "yaml"]
HEAVY += ["matplotlib", "onnx", "onnxscript", "sklearn", "scipy"]
command.preload(
    "torch", "timm", "torchvision", "lightning_fabric", "matplotlib.backends.backend_svg"
)
command.preload("dafuse.commands.run", "dafuse.engine.run", "dafuse.engine.display")


def dafuse(
    *arguments: object,
    folder: Path | None = None,
    at: tuple[str, str, int] | None = None,
    by: signal.Signals = signal.SIGKILL,
    before: Callable[[], None] | None = None,
) -> command.Ended:
    """Run the command in a process of its own, which is forked: torch is there already.

    Args:
        arguments: as on the command line, without the word dafuse
        folder: the working directory
        at: the module, function and number of the call at which the process sends itself a signal
        by: that signal
        before: called in the new process before the command; a function of a module
    """
    if at is not None:
        before = partial(signal_at, *at, by)
    environment = clean_environment()
    return command.run(*arguments, folder=folder, before=before, environment=environment)


def undrawn() -> None:
    """Leave the figures out of pages: they take longer than a small run."""
    from dafuse.report.drawing import Drawing

    Drawing.svg = lambda _: '<svg role="img"></svg>'  # type: ignore[method-assign]


def short_demo() -> None:
    """Let the demo of research learn from one image of each class, in one epoch."""
    from dafuse.commands import demo_research

    usual = demo_research.demo_configs

    def fewer(out: Path, seed: int) -> list[RunConfig]:
        configs = usual(out, seed)
        for config in configs:
            config.data.update(train_per_class=1, test_per_class=1)
            config.increment = 31
            if "epochs" in config.method:
                config.method.update(epochs=1, align_epochs=1)
        return configs

    demo_research.demo_configs = fewer


def limit_files(size: int) -> None:
    """Let writes past this size fail, as on a full disk."""
    import resource  # not on Windows

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def signal_at(module: str, path: str, count: int, number: signal.Signals) -> None:
    """Let this process send itself a signal at a call of a function of a module."""
    # tests that were started in the background inherit an ignored SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    owner = import_module(module)
    *names, last = path.split(".")
    for name in names:
        owner = getattr(owner, name)
    original, calls = getattr(owner, last), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    setattr(owner, last, counted)


def clean_environment(**extra: str) -> dict[str, str]:
    """Return the environment of subprocesses: few threads, no weights or data of the caller."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith("DAFUSE_")}
    return keep | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"} | extra


def dafuse_without(*modules: str) -> list[str]:
    """The command dafuse where these cannot be imported."""
    code = f"""
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nothing())
from dafuse.cli import main
main(sys.argv[1:])
"""
    return [sys.executable, "-c", code]
