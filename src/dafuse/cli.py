"""The command line: a table from command to function. Nothing heavy is imported before it must."""

import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise

from dafuse import __version__
from dafuse.errors import DafuseError, did_you_mean
from dafuse.processes import rank_here, wait_for_first
from dafuse.wording import shown

COMMANDS = {  # name -> module and function below dafuse.commands, what it does
    "learn": ("learn.learn", "teach a model the classes of a folder; makes the model if need be"),
    "predict": ("predict.predict", "what images show: class names and probabilities"),
    "evaluate": ("evaluate.evaluate", "how well a model does on images of known classes"),
    "serve": ("serve.serve", "a page in the browser and an API, to ask a model and to teach it"),
    "info": ("info.info", "a model's classes, sizes and history"),
    "ledger": ("info.ledger", "everything a model keeps about its images, in words and bytes"),
    "forget": ("change.forget", "remove classes from a model"),
    "rename": ("change.rename", "give a class of a model another name"),
    "undo": ("change.undo", "take back the last step of a model"),
    "trim": ("change.trim", "delete old versions of a model"),
    "merge": ("merge.merge", "add up models that were taught apart"),
    "export": ("export.export", "a model as one .onnx file that predicts elsewhere"),
    "backbone": ("export.backbone", "a network as one .onnx file, to teach without torch"),
    "demo": ("demo.demo", "teach, teach again, merge, evaluate, on drawn images: under a minute"),
    "demo-research": ("demo_research.demo", "DAF beside baselines on drawn characters: 3 minutes"),
    "run": ("run.main", "learn a stream of tasks with one method, from options or a recipe"),
    "experiment": (
        "experiment.experiment",
        "a table or figure of the paper: runs, then a report",
    ),
    "report": ("report.report", "tables and a page over finished (or unfinished) runs"),
    "bench": ("bench.bench", "speed and memory, beside what they are to be compared with"),
    "list": ("listing.listing", "what there is: methods, data, backbones, recipes, experiments"),
    "doctor": ("doctor.doctor", "versions, devices, weights, data: what is here and what to do"),
}
# BLAS threads wait for each other in a loop: beside two busy programs a lesson took 4 to 8 s with
# two of them and 3.5 s with one; alone it takes 1.7 s with two and 1.9 s with one.
ONE_BLAS_THREAD = ("learn", "predict", "evaluate", "serve", "merge", "forget", "demo")
EXTRAS = {  # of dafuse -> what it brings, by the names that are imported
    "torch": "torch torchvision timm lightning_fabric onnxscript yaml matplotlib scipy jinja2 "
    "psutil",
    "serve": "fastapi uvicorn multipart python_multipart starlette pydantic prometheus_client",
    "sklearn": "sklearn",
    "tables": "pyarrow",
    "ray": "ray",
    "remote": "fsspec aiohttp s3fs",
}
GO_ON = ("demo-research", "run", "experiment")  # started again after Ctrl-C


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return
    if arguments[0] in ("-V", "--version"):
        print(f"dafuse {__version__}")
        return
    command, *rest = arguments
    warnings.filterwarnings("ignore", module="PIL")  # dafuse says what is wrong with an image
    if command in ONE_BLAS_THREAD:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported
    told_to_end: list[int] = []
    try:
        with _sigterm_as_ctrl_c(told_to_end):
            start(command, rest)
    except DafuseError as error:
        _tell(str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "dafuse"):
            raise
        print(f"dafuse: {command} needs {missing}: {how_to_install(missing)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read what is printed has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written
        _tell(_in_words(error))
        sys.exit(2)
    except KeyboardInterrupt as stop:  # a command that changes a model says what it left
        after = "the same command goes on where it stopped" if command in GO_ON else str(stop)
        if not rank_here():
            print(shown("dafuse: stopped" + (f"; {after}" if after else "")), file=sys.stderr)
        sys.exit(128 + (told_to_end[0] if told_to_end else signal.SIGINT))


def _tell(what: str) -> None:
    """Say what is wrong, in one of the processes of a run; each may have found the same."""
    if who := rank_here():
        wait_for_first()
    print(shown(f"dafuse: {who}: {what}" if who else f"dafuse: {what}"), file=sys.stderr)


def start(command: str, arguments: list[str]) -> None:
    """Call the function of a command, and import no other's."""
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS)
        raise DafuseError(f"no command is called {command!r}; see dafuse --help{hint}")
    module, _, name = COMMANDS[command][0].partition(".")
    function = getattr(import_module(f"dafuse.commands.{module}"), name)
    if name == "main":  # its options depend on what is asked for
        function(arguments)
    else:
        from dafuse.commands.options import call

        for before, text in pairwise([command, *arguments]):
            if not text or re.fullmatch("--[^=]+=", text):  # else a path of it would be "."
                raise DafuseError(f"what follows {text or before} is empty: give a value there")
        call(function, f"dafuse {command}", arguments)


@contextmanager
def _sigterm_as_ctrl_c(told: list[int]) -> Iterator[None]:
    """Treat SIGTERM, by which systems end a process, as Ctrl-C, and note it in the list.

    A program that calls `main` keeps its own way to treat it, if it has one.
    """
    mine = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() != mine:  # a process that was forked in here ends without a word
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        told.append(number)
        raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _in_words(error: OSError) -> str:
    """Return the system's message without its number: which file, and what is wrong with it."""
    if error.strerror is None:
        return str(error)
    where = "" if error.filename is None else f"{error.filename}: "
    return f"{where}{error.strerror[0].lower()}{error.strerror[1:]}"


def how_to_install(module: str) -> str:
    """Return the command that installs a module of one of dafuse's extras."""
    extra = next((extra for extra, names in EXTRAS.items() if module in names.split()), "")
    return f"pip install 'dafuse[{extra}]'" if extra else f"pip install {module}"


def usage() -> str:
    lines = [f"  {name:14} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "dafuse: an image classifier that keeps learning new classes, keeps no old images,",
            "and stays one small model.",
            "",
            "usage: dafuse COMMAND [options]      dafuse COMMAND --help",
            "",
            *lines,
        ]
    )
