"""Files that the storm damages (models, exported files, networks, runs), and readers of each."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dafuse.backbones.extractor import embedded_graph
from dafuse.files import read_json
from dafuse.sealed import write_sealed
from faults.command import run, start
from faults.eyes import write_eye
from faults.forgery import (
    Forge,
    forge_checkpoint,
    forge_object,
    forge_older_version,
    forge_onnx,
    forge_pointer,
    forge_run,
    forge_version,
)
from faults.world import World, require_well
from helpers.run_folders import add_measurement, make_run

Words = Callable[[Path], Sequence[object]]  # of a command, for the folder of the subject
RUN = ("run", "--method", "simplecil", "--increment", "[2,1]", "--device", "cpu")
TIMES = ("Training images/s", "Inference images/s", "Seconds")  # in the table that a run shows
DIED = 9  # the status of a process that was to die
ASKING = ("--json", "--top", "5", "--threads", "1")


@dataclass(frozen=True)
class Reading:
    """A command that reads the subject."""

    words: Words
    after: Words | None = None  # of one that changes it: what is asked afterwards
    before: Callable[[Path], None] | None = None  # called in the process that is to read
    told: Callable[[Path], str] | None = None  # what it answers by files
    share: float = 1.0  # of the readings of its subject, beside others
    times: tuple[str, ...] = ()  # the names of rows of its answer that differ each time


@dataclass(frozen=True)
class Subject:
    """A folder that holds what is damaged, as it is when it is whole."""

    name: str
    whole: Path
    readings: dict[str, Reading]
    forge: dict[str, Forge]  # by the pattern of the files that it forges, or "" for the folder
    damaged: str = "**/*"  # the files that are damaged
    alike: bool = False  # whether one file is as good as another


class Subjects:
    """All of them, each made once."""

    SHARES: ClassVar = {  # of the trials; the last take seconds each
        "model": 0.62,
        "exported": 0.14,
        "network": 0.12,
        "run": 0.11,
        "package": 0.007,
        "checkpoint": 0.003,
    }

    def __init__(self, world: World, place: Path) -> None:
        self.world, self.place = world, place
        self.eye = write_eye(place / "eye.onnx")
        self.model = self._taught("model", "--backbone", self.eye)
        require_well(run("learn", self.model, world.more))
        self.other = world.place / "other"
        require_well(run("learn", self.other, world.asked, "--backbone", self.eye))
        self._made: dict[str, Subject] = {}

    def of(self, name: str) -> Subject:
        """The one of this name, made when it is first asked for."""
        makers = {
            "model": self._models,
            "exported": self._exported,
            "network": self._eyes,
            "package": self._packaged,
            "run": self._runs,
            "checkpoint": self._resumed,
        }
        if name not in self._made:
            self._made[name] = makers[name]()
        return self._made[name]

    def _taught(self, name: str, *options: object) -> Path:
        model = self.place / name
        require_well(run("learn", model, self.world.first, *options))
        require_well(run("learn", model, self.world.second))
        return model

    def _ask(self, *of: str) -> Words:
        return lambda here: ["predict", here / "model", self.world.asked, *ASKING, *of]

    def _models(self) -> Subject:
        def do(*words: object) -> Words:
            return lambda here: [words[0], here / "model", *words[1:]]

        whole = self._folder("models")
        shutil.copytree(self.model, whole / "model")
        ask = self._ask()
        name = "car"
        readings = {
            "predict": Reading(ask),
            "predict again": Reading(ask),
            "info": Reading(do("info")),
            "ledger": Reading(do("ledger")),
            "learn": Reading(do("learn", self.world.second), ask),
            "learn, known": Reading(do("learn", self.world.more), ask),
            "undo": Reading(do("undo"), ask),
            "forget": Reading(do("forget", name), ask),
            "forget for good": Reading(do("forget", name, "--for-good"), ask),
            "rename": Reading(do("rename", name, "automobile"), ask),
            "trim": Reading(do("trim", "--keep", "1"), ask),
            "merge": Reading(
                lambda here: ["merge", here / "model", self.other, "--out", here / "both"],
                lambda here: ["predict", here / "both", self.world.asked, *ASKING],
            ),
            "evaluate": Reading(do("evaluate", self.world.more)),
            "export": Reading(
                lambda here: ["export", here / "model", here / "new.onnx"],
                lambda here: ["predict", here / "new.onnx", self.world.asked, *ASKING],
            ),
        }
        forge: dict[str, Forge] = {
            "version": forge_version,
            "older version": forge_older_version,
            "pointer": forge_pointer,
            "object": forge_object,
            "object again": forge_object,
        }
        return Subject("model", whole, readings, forge, "model/**/*")

    def _exported(self) -> Subject:
        whole = self._folder("exported")
        require_well(run("export", self.model, whole / "float.onnx"))
        require_well(run("export", self.model, whole / "int8.onnx", "--int8"))

        def ask(name: str) -> Reading:
            return Reading(lambda here: ["predict", here / name, self.world.asked, *ASKING])

        readings = {name: ask(f"{name}.onnx") for name in ("float", "int8")}
        forge: dict[str, Forge] = {
            "float": lambda here, rng: forge_onnx(here / "float.onnx", rng),
            "int8": lambda here, rng: forge_onnx(here / "int8.onnx", rng),
        }
        return Subject("exported", whole, readings, forge, alike=True)

    def _eyes(self) -> Subject:
        whole = self._folder("eyes")
        shutil.copytree(self.model, whole / "model")
        write_eye(whole / "inside.onnx")
        write_eye(whole / "beside.onnx", beside=True)

        def ask(name: str) -> Reading:
            return Reading(lambda here: [*self._ask()(here), "--weights", here / name])

        readings = {name: ask(f"{name}.onnx") for name in ("inside", "beside")}
        forge: dict[str, Forge] = {
            "inside": lambda here, rng: forge_onnx(here / "inside.onnx", rng),
            "beside": lambda here, rng: forge_onnx(here / "beside.onnx", rng),
        }
        return Subject("network", whole, readings, forge, "*side.*")

    def _packaged(self) -> Subject:
        """The files inside the package; a process that is to read is told of a copy of them."""
        whole = self._folder("packaged")
        shutil.copytree(self.world.taught("embedded", self.world.first), whole / "model")
        for file in (embedded_graph(), embedded_graph().with_suffix(".safetensors")):
            shutil.copy(file, whole)
        reading = Reading(self._ask(), before=use_package)
        return Subject("package", whole, {"predict": reading}, {}, "dafuse*")

    def _runs(self) -> Subject:
        whole = self._folder("runs")
        for name, method in (("one", "daf"), ("two", "lift")):
            made = add_measurement(make_run(whole / "runs" / name, method=method, tasks=3, size=2))
            for file in made.glob("*.json"):
                write_sealed(file, read_json(file))

        def report(here: Path) -> Sequence[object]:
            return ["report", here / "runs", "--out", here / "out"]

        readings = {
            "report": Reading(report, before=tables_alone, told=_tables),
            "report with its page": Reading(report, told=_tables, share=0.02),
        }
        forge: dict[str, Forge] = {"run": lambda here, rng: forge_run(here / "runs", rng)}
        return Subject("run", whole, readings, forge, "runs/**/*")

    def _resumed(self) -> Subject:
        """A run that was killed after its first task, and is begun again."""
        whole = self._folder("resumed")

        def again(here: Path) -> Sequence[object]:
            return [*RUN, "--data", self.world.first, "--out", here / "run"]

        if start(*again(whole), before=die_after_a_task).wait().status != DIED:
            raise RuntimeError("the run was to die after its first task")
        reading = Reading(again, told=_counts, times=TIMES)
        forge: dict[str, Forge] = {
            "run": lambda here, rng: forge_run(here / "run", rng),
            "tensors": lambda here, rng: forge_checkpoint(here / "run", rng),
        }
        return Subject("checkpoint", whole, {"run": reading}, forge, "run/**/*")

    def _folder(self, name: str) -> Path:
        folder = self.place / name
        folder.mkdir()
        return folder


def use_package(here: Path) -> None:
    """Take this folder for the package's own."""
    from dafuse.backbones import extractor

    graph = here / embedded_graph().name
    extractor.embedded_graph = lambda tag="": graph


def tables_alone(here: Path) -> None:
    """Let a report make its tables alone: pictures take a second, and show the same."""
    from dafuse.report import outputs

    outputs.FIGURES = {}
    outputs.page = _no_page


def die_after_a_task() -> None:
    """Kill the process when it has saved its first task."""
    from dafuse.engine.folder import RunFolder

    save = RunFolder.save

    def save_and_die(self: RunFolder, *what: Any) -> None:
        save(self, *what)
        os._exit(DIED)

    RunFolder.save = save_and_die  # type: ignore[assignment, method-assign]


def _no_page(runs: object, title: str = "", missing: object = ()) -> str:
    return ""


def _tables(here: Path) -> str:
    return "\n".join(file.read_text() for file in sorted((here / "out").glob("*.md")))


def _counts(here: Path) -> str:
    results = read_json(here / "run" / "results.json")
    return str([results[name] for name in ("correct", "total", "classes", "task_sizes")])
