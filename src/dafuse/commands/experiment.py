"""`dafuse experiment NAME [--seeds ...] [options of dafuse run]`: a table or figure of the paper.

Runs that are finished are taken as they are, those begun go on, the others are made; one that fails
does not take the others down. The report, the tables and the figure are made from the run folders
alone; they say what is missing.
"""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dafuse.commands.parsing import Parser
from dafuse.commands.run import parse
from dafuse.commands.terminal import show_results, wide_console
from dafuse.errors import DafuseError, did_you_mean
from dafuse.experiments.declared import EXPERIMENTS, MEASUREMENT, Experiment, MeasureOptions
from dafuse.files import make_folder
from dafuse.progress import Progress
from dafuse.report.outputs import write_outputs
from dafuse.report.tables import terminal_rows

if TYPE_CHECKING:
    from dafuse.engine.config import RunConfig
    from dafuse.experiments.few_images import FewImages
    from dafuse.experiments.measurement import Measurement
    from dafuse.experiments.plan import PlannedRun

    Step = PlannedRun | Measurement | FewImages

NOT_HERE = {  # options of `dafuse run`, and what to do instead
    "--seed": "use --seeds",
    "--record": "it records what it can use again",
    "--replay": "it replays what it finds recorded",
}


def main(arguments: list[str]) -> None:
    options, rest = _parser().parse_known_args(arguments)
    if options.name not in EXPERIMENTS:
        raise DafuseError(
            f"no experiment is called {options.name!r}; there are {', '.join(EXPERIMENTS)}"
            + did_you_mean(options.name, EXPERIMENTS)
        )
    if options.dry_run and options.report_only:
        raise DafuseError("either --dry-run or --report-only, not both")
    experiment = EXPERIMENTS[options.name]
    measure = _measure_options(options, experiment.measures)
    texts, rest = _method_options(rest)
    if experiment.cells:
        _cells(options, experiment, texts, rest)
        return
    base, common = _parsed(rest, texts, experiment)
    from dafuse.experiments.plan import estimates, measurements, plan

    out = _folder(options.out)
    planned = plan(experiment, base, options.seeds or experiment.seeds, out, common)
    measured = measurements(experiment, planned, measure)
    steps: list[Step] = [*planned, *measured]
    file = out / f"{options.name}-{Path(planned[0].config.data['name']).name}"
    if options.dry_run:
        known = [*estimates(planned, out), *(each.seconds_to_go() for each in measured)]
        _show_plan(steps, known, out)
        makes = f"{', '.join(experiment.tables)} and the figure {experiment.figure}"
        print(f"makes {file}.html, .md and .png: {makes}")
        return
    failed = _make(steps, options, out)
    missing = [f"{_name(step)} ({step.state()})" for step in steps if not step.finished()]
    _report(options.name, experiment, planned, missing, file)
    if missing:
        print(f"missing: {'; '.join(missing)}")
    if failed:
        raise DafuseError(f"{len(failed)} of {_count(steps)} failed: {'; '.join(failed)}")


def _make(steps: "Sequence[Step]", options: argparse.Namespace, out: Path) -> list[str]:
    """Make the steps, unless only a report is asked for. Returns those that failed."""
    if options.report_only:
        return []
    make_folder(out)
    from dafuse.engine.display import TerminalProgress

    with TerminalProgress() as progress:
        return make_all(steps, progress)


def _cells(
    options: argparse.Namespace, experiment: Experiment, texts: dict[str, str], rest: list[str]
) -> None:
    """An experiment without runs: its cells, a table and a figure."""
    if texts:
        raise DafuseError(f"{options.name} has no runs: leave --method.{next(iter(texts))} out")
    base = parse(rest)
    from dafuse.experiments.few_images import FewImages
    from dafuse.report.measured_few_images import read_cells, table, write_cells

    out = _folder(options.out)
    step = FewImages.asked(base, options.seeds or experiment.seeds, out)
    file = out / f"{options.name}-{Path(step.config.data['name']).name}"
    if options.dry_run:
        _show_plan([step], [None if not step.finished() else 0.0], out)
        print(f"makes {file}.md and .png")
        return
    failed = _make([step], options, out)
    if (found := read_cells(step.folder)) and found["cells"]:
        missing = "" if step.finished() else step.state()
        title = f"{options.name}: {step.config.data['name']}, {step.config.backbone}"
        wide_console().print(terminal_rows(*table(found)))
        print("\n".join(write_cells(found, file, title, missing)))
    if failed:
        raise DafuseError(failed[0])


def _report(
    name: str, experiment: Experiment, planned: "list[PlannedRun]", missing: list[str], file: Path
) -> None:
    """Write the page, the tables and the figure of the runs that are there."""
    runs = [found for each in planned if (found := each.found()) is not None]
    if not runs:
        return
    show_results(runs, file.with_name(f"{file.name}.html"), title=name, missing=missing)
    shared = planned[0].config
    title = f"{name}: {shared.data['name']}, {shared.backbone}, increment {shared.increment}"
    tables, figure = experiment.tables, experiment.figure
    print("\n".join(write_outputs(runs, file, title, tables, figure, missing)))


def make_all(steps: "Sequence[Step]", progress: Progress) -> list[str]:
    """Make every step that is not finished. Returns what failed, and why."""
    from dafuse.engine.run import prepare

    failed: list[str] = []
    bench = None
    recorders_first = sorted(steps, key=lambda step: step.config.replay is not None)
    for number, step in enumerate(recorders_first, 1):
        progress.say(f"--- {number}/{len(steps)}: {_name(step)}")
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
            failed.append(f"{_name(step)} ({why})")
            progress.say(f"failed: {why}")
    return failed


def _name(step: "Step") -> str:
    return f"{step.label}, seed {step.config.seed}"


def _count(steps: "Sequence[Step]") -> str:
    if any(step.label == MEASUREMENT for step in steps):
        return f"{len(steps)} runs and measurements"
    return "1 run" if len(steps) == 1 else f"{len(steps)} runs"


def _show_plan(steps: "Sequence[Step]", known: Sequence[float | None], out: Path) -> None:
    states = [step.state() for step in steps]
    told_of = list(zip(steps, states, known, strict=True))
    damaged = states.count("damaged")
    new = [step for step, state, sure in told_of if sure is None and state != "damaged"]
    guessed, why_not = _guessed(new)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("run", "seed", "how far", "seconds to go", "folder", "how"):
        table.add_column(heading, overflow="fold")
    for step, state, sure in told_of:
        guess = guessed.get(_name(step))
        shown = f"{sure:.0f}" if sure is not None else "?" if guess is None else f"~{guess:.0f}"
        seed, how = str(step.config.seed), "" if state == "finished" else step.how()
        table.add_row(step.label, seed, state, shown, step.folder.name, how)
    total = sum(seconds or 0 for seconds in known) + sum(guessed.values())
    told = [f"{damaged} damaged"] if damaged else []
    if damaged + len(new) < len(steps) or guessed:
        told.append(f"about {_duration(total)} to go")
    if why_not:
        told.append(f"for {len(new)} the time is unknown: {why_not}")
    if guessed:
        some = "a guess" if len(guessed) == len(steps) else f"{len(guessed)} of them guessed"
        told.append(f"{some} from one timed pass, as none of the kind is finished in {out} yet")
    console = wide_console()
    console.print(table)
    summary = f"{_count(steps)}: {'; '.join(told)}"
    console.print(summary, highlight=False, markup=False, soft_wrap=True)


def _guessed(steps: "Sequence[Step]") -> tuple[dict[str, float], str]:
    """Guessed seconds of steps that were never timed, by name; or why there are none."""
    if not steps:
        return {}, ""
    from dafuse.experiments.guess import Guess

    try:
        guess = Guess(steps[0].config)
        return {_name(step): step.guessed(guess) for step in steps}, ""
    except DafuseError as error:
        return {}, str(error)


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"


def _folder(name: str) -> Path:
    out = Path(name)
    if out.exists() and not out.is_dir():
        raise DafuseError(f"--out {out} is not a folder")
    return out


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


def _method_options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options for every method that has them, and all other arguments."""
    common: dict[str, str] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        key, equals, value = word.partition("=")
        if key in NOT_HERE:
            raise DafuseError(f"{key} is not for an experiment: {NOT_HERE[key]}")
        if not key.startswith("--method"):
            rest.append(word)
        elif not key.startswith("--method."):
            raise DafuseError(
                "an experiment names its own methods; --method.OPTION is for all of them"
            )
        else:
            common[key.removeprefix("--method.")] = value if equals else next(words, "")
    return common, rest


def _parsed(
    rest: list[str], texts: dict[str, str], experiment: Experiment
) -> tuple["RunConfig", dict[str, Any]]:
    """What all runs share, and the options for methods, checked as `dafuse run` checks them."""
    base, common = parse(rest), dict[str, Any](texts)  # what no method has, a plan refuses
    from dafuse.methods.registry import find_method, with_defaults

    for name in dict.fromkeys(options["name"] for options in experiment.runs):
        own = [key for key in texts if key in with_defaults(name, {})]
        if own:
            said = [f"--method.{key}={texts[key]}" for key in own]
            method = parse([*rest, f"--method={name}", *said]).method
            find_method(name).validate({key: method[key] for key in with_defaults(name, {})})
            common |= {key: method[key] for key in own}
    return base, common


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
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
    parser.add_argument(
        "--report-only", action="store_true", help="make the report of what is there, run nothing"
    )
    measured = parser.add_argument_group("for an experiment that measures")
    for field in fields(MeasureOptions):
        told = f"{field.metadata['help']}; {field.default} if left out"
        measured.add_argument(f"--measure-{field.name}", type=int, metavar="N", help=told)
    return parser
