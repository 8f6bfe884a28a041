"""`dafuse experiment NAME [--seeds ...] [options of dafuse run]`: a table or figure of the paper.

Runs that are finished are taken as they are, those begun go on, the others are made; one that fails
does not take the others down. The report is made from the run folders alone.
"""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console
from rich.table import Table

from dafuse.commands.run import parse
from dafuse.commands.terminal import show_results
from dafuse.errors import DafuseError
from dafuse.experiments.declared import EXPERIMENTS, MeasureOptions
from dafuse.progress import Progress

if TYPE_CHECKING:
    from dafuse.experiments.measurement import Measurement
    from dafuse.experiments.plan import Planned

    Step = Planned | Measurement


def main(arguments: list[str]) -> None:
    options, rest = _parser().parse_known_args(arguments)
    if options.name not in EXPERIMENTS:
        raise DafuseError(
            f"no experiment is called {options.name!r}; there are {', '.join(EXPERIMENTS)}"
        )
    experiment = EXPERIMENTS[options.name]
    measure = _measure_options(options, experiment.measures)
    common, rest = _method_options(rest)
    base = parse(rest)
    from dafuse.experiments.plan import measurements, plan

    out = Path(options.out)
    planned = plan(experiment, base, options.seeds or experiment.seeds, out, common)
    measured = measurements(experiment, planned, measure)
    if options.dry_run:
        _show_plan(planned, measured)
        return
    from dafuse.engine.display import TerminalProgress

    steps: list[Step] = [*planned, *measured]
    with TerminalProgress() as progress:
        failed = make_all(steps, progress)
    done = [run.folder for run in planned if run.found() is not None]
    if done:
        show_results(done, page=out / f"{options.name}.html")
    missing = [f"{step.label}, seed {step.config.seed}" for step in steps if not step.finished()]
    if missing:
        print(f"missing: {'; '.join(missing)}")
    if failed:
        what = "runs and measurements" if measured else "runs"
        raise DafuseError(f"{len(failed)} of {len(steps)} {what} failed: {'; '.join(failed)}")


def make_all(steps: "Sequence[Step]", progress: Progress) -> list[str]:
    """Make every step that is not finished; what failed, and why."""
    from dafuse.engine.run import prepare

    failed: list[str] = []
    bench = None
    for number, step in enumerate(steps, 1):
        progress.say(f"--- {number}/{len(steps)}: {step.label}, seed {step.config.seed}")
        if step.finished():
            progress.say(f"{step.folder} is finished; nothing to compute")
            continue
        bench = bench or prepare(step.config, progress)
        try:
            step.make(progress, bench)
        except Exception as error:  # the others are worth having all the same
            why = (
                str(error) if isinstance(error, DafuseError) else f"{type(error).__name__}: {error}"
            )
            failed.append(f"{step.label}, seed {step.config.seed} ({why})")
            progress.say(f"failed: {why}")
    return failed


def _show_plan(planned: "Sequence[Planned]", measured: "Sequence[Measurement]") -> None:
    from dafuse.experiments.plan import estimates

    table = Table("run", "seed", "how far", "how", "seconds to go", box=None, padding=(0, 2, 0, 0))
    steps: list[Step] = [*planned, *measured]
    to_go = [*estimates(planned), *(each.seconds_to_go() for each in measured)]
    for step, seconds in zip(steps, to_go, strict=True):
        shown = "?" if seconds is None else f"{seconds:.0f}"
        table.add_row(step.label, str(step.config.seed), step.state(), step.how(), shown)
    console = Console()
    console.print(table)
    unknown = to_go.count(None)
    what = "runs and measurements" if measured else "runs"
    rest = f" and {unknown} {what} of whose kind none is finished yet" if unknown else ""
    known = sum(seconds or 0 for seconds in to_go)
    console.print(f"{len(steps)} {what}, about {known:.0f} s to go{rest}", highlight=False)


def _measure_options(options: argparse.Namespace, measures: bool) -> MeasureOptions:
    asked = {
        field.name: value
        for field in fields(MeasureOptions)
        if (value := getattr(options, f"measure_{field.name}")) is not None
    }
    for name, value in asked.items():
        if not measures:
            raise DafuseError(f"{options.name} measures nothing beside its runs: --measure-{name}")
        if value < 1:
            raise DafuseError(f"--measure-{name} must be at least 1, not {value}")
    return MeasureOptions(**asked)


def _method_options(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """What is said of methods, for every one that has such an option; and the rest."""
    common: dict[str, Any] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        key, equals, value = word.partition("=")
        if not key.startswith("--method"):
            rest.append(word)
        elif not key.startswith("--method."):
            raise DafuseError(
                "an experiment names its own methods; --method.OPTION is for all of them"
            )
        else:
            common[key.removeprefix("--method.")] = yaml.safe_load(
                value if equals else next(words, "")
            )
    return common, rest


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dafuse experiment",
        description="Make a table or figure of the paper: all its runs, then a report over them.",
        epilog="All options of dafuse run apply too (--data, --backbone, --increment, ...); "
        "--method.OPTION is set for every method that has it.",
        allow_abbrev=False,
    )
    parser.add_argument("name", help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--seeds", type=int, nargs="+", help="class orders; its own if left out")
    parser.add_argument("--out", default="runs", help="folder of all runs; runs/ if left out")
    parser.add_argument("--dry-run", action="store_true", help="list the runs, compute nothing")
    measured = parser.add_argument_group("what is measured, of an experiment that measures")
    for field in fields(MeasureOptions):
        told = f"{field.metadata['help']}; {field.default} if left out"
        measured.add_argument(f"--measure-{field.name}", type=int, metavar="N", help=told)
    return parser
