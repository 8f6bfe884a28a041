"""`dafuse experiment NAME [--seeds ...] [options of dafuse run]`: a table or figure of the paper.

Runs that are finished are taken as they are, those begun go on, the others are made; one that fails
does not take the others down. The report, the tables and the figure are made from the run folders
alone; they say what is missing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dafuse.commands.grid import listed_seeds
from dafuse.commands.options import Rest
from dafuse.commands.plans import (
    Placement,
    make_steps,
    missing_of,
    runs_folder,
    show_plan,
    tell_missing,
)
from dafuse.commands.run import parse
from dafuse.commands.terminal import show_results, wide_console
from dafuse.errors import DafuseError, did_you_mean
from dafuse.experiments.declared import EXPERIMENTS, Experiment, MeasureOptions
from dafuse.report.outputs import write_outputs
from dafuse.report.tables import terminal_rows

if TYPE_CHECKING:
    from dafuse.engine.config import RunConfig
    from dafuse.experiments.making import Step
    from dafuse.experiments.plan import PlannedRun

HERE = Placement()
EACH = MeasureOptions()
Measure = Annotated[
    MeasureOptions, Parameter(name="*", name_transform=lambda option: f"measure-{option}")
]
NOT_HERE = {  # options of `dafuse run`, and what to do instead
    "--seed": "use --seeds",
    "--record": "it records what it can use again",
    "--replay": "it replays what it finds recorded",
}


def experiment(
    name: str,
    /,
    *rest: Rest,
    seeds: Annotated[Sequence[str], Parameter(consume_multiple=1)] = (),
    out: str = "runs",
    dry_run: bool = False,
    report_only: bool = False,
    placement: Annotated[Placement, Parameter(name="*")] = HERE,
    measure: Measure = EACH,
) -> None:
    """Make a table or figure of the paper: all its runs, then a report over them.

    All options of dafuse run apply too (--data, --backbone, --increment, ...); --method.OPTION is
    set for every method that has it.

    Args:
        name: see dafuse list experiments
        seeds: a list of seeds with commas or blanks, such as 1993,1994; one number is one seed, not
            how many (as for dafuse run); its own if left out
        out: folder of all runs
        dry_run: list the runs, compute nothing
        report_only: make the report of what is there, run nothing
    """
    if name not in EXPERIMENTS:
        raise DafuseError(
            f"no experiment is called {name!r}; there are {', '.join(EXPERIMENTS)}"
            + did_you_mean(name, EXPERIMENTS)
        )
    if dry_run and report_only:
        raise DafuseError("either --dry-run or --report-only, not both")
    placement.require_valid()
    experiment = EXPERIMENTS[name]
    _require_measurable(name, experiment, measure)
    listed = [listed_seeds(one, "seeds, such as 1993,1994") for one in seeds]
    given = list(dict.fromkeys(chain(*listed)))
    texts, words = method_options(rest)
    folder = runs_folder(out)
    asked = ExperimentRequest(
        name, experiment, given or experiment.seeds, folder, dry_run, report_only, placement
    )
    if experiment.cells:
        _cells(asked, texts, words)
    else:
        _runs(asked, texts, words, measure)


@dataclass(frozen=True)
class ExperimentRequest:
    """The options of an experiment, and the place of its runs."""

    name: str
    experiment: Experiment
    seeds: Sequence[int]
    out: Path
    dry_run: bool
    report_only: bool
    placement: Placement

    def file(self, config: "RunConfig") -> Path:
        """Return the name of the outputs, but for its suffix."""
        return self.out / f"{self.name}-{Path(config.data['name']).name}"


def _runs(
    asked: ExperimentRequest, texts: dict[str, list[str]], words: list[str], measure: MeasureOptions
) -> None:
    """Make an experiment of runs, its report, tables and figure."""
    base, common = parsed(words, texts, asked.experiment)
    from dafuse.experiments.plan import estimates, measurements, plan

    experiment, out = asked.experiment, asked.out
    planned = plan(experiment, base, asked.seeds, out, common)
    measured = measurements(experiment, planned, measure)
    steps: list[Step] = [*planned, *measured]
    file = asked.file(planned[0].config)
    if asked.dry_run:
        known = [*estimates(planned, out), *(each.seconds_to_go() for each in measured)]
        show_plan(steps, known, out)
        makes = f"{', '.join(experiment.tables)} and the figure {experiment.figure}"
        print(f"makes {file}.html, .md and .png: {makes}")
        return
    failed = _make(steps, asked)
    missing = missing_of(steps)
    _report(asked, planned, missing, file)
    tell_missing(steps, missing, failed)


def _make(steps: "Sequence[Step]", asked: ExperimentRequest) -> list[str]:
    """Make the steps, unless only a report is asked for. Returns those that failed."""
    if asked.report_only:
        return []
    return make_steps(steps, asked.out, asked.placement)


def _cells(asked: ExperimentRequest, texts: dict[str, list[str]], words: list[str]) -> None:
    """Make an experiment without runs: its cells, a table and a figure."""
    if texts:
        option = next(iter(texts)).replace("_", "-")
        raise DafuseError(f"{asked.name} has no runs: leave --method.{option} out")
    if asked.placement != HERE:
        raise DafuseError(f"{asked.name} has no runs: leave --parallel and --cluster out")
    base = parse(words)
    from dafuse.experiments.few_images import FewImages
    from dafuse.report.measured_few_images import read_cells, table, write_cells

    step = FewImages.asked(base, asked.seeds, asked.out)
    file = asked.file(step.config)
    if asked.dry_run:
        show_plan([step], [None if not step.finished() else 0.0], asked.out)
        print(f"makes {file}.md and .png")
        return
    failed = _make([step], asked)
    if (found := read_cells(step.folder)) and found.cells:
        missing = "" if step.finished() else step.state()
        title = f"{asked.name}: {step.config.data['name']}, {step.config.backbone}"
        wide_console().print(terminal_rows(*table(found)))
        print("\n".join(write_cells(found, file, title, missing)))
    if failed:
        raise DafuseError(failed[0])


def _report(
    asked: ExperimentRequest, planned: "list[PlannedRun]", missing: list[str], file: Path
) -> None:
    """Write the page, the tables and the figure of the runs that are there."""
    runs = [found for each in planned if (found := each.results()) is not None]
    if not runs:
        return
    show_results(runs, file.with_name(f"{file.name}.html"), title=asked.name, missing=missing)
    shared = planned[0].config
    title = f"{asked.name}: {shared.data['name']}, {shared.backbone}, increment {shared.increment}"
    tables, figure = asked.experiment.tables, asked.experiment.figure
    print("\n".join(write_outputs(runs, file, title, tables, figure, missing)))


def _require_measurable(name: str, experiment: Experiment, measure: MeasureOptions) -> None:
    for option, value in asdict(measure).items():
        if value != getattr(EACH, option) and not experiment.measures:
            raise DafuseError(f"{name} measures nothing beside its runs: --measure-{option}")
        if value < 1:
            raise DafuseError(f"--measure-{option} must be at least 1, not {value}")


def method_options(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return how options for every method that has them are typed, and all other arguments."""
    common: dict[str, list[str]] = {}
    rest: list[str] = []
    typed = rest  # where a word goes that does not begin with dashes
    for word in arguments:
        key, equals, _ = word.partition("=")
        if key in NOT_HERE:
            raise DafuseError(f"{key} is not for an experiment: {NOT_HERE[key]}")
        if not word.startswith("--"):
            typed.append(word)
        elif not key.startswith("--method"):
            typed = rest
            rest.append(word)
        elif not key.startswith("--method."):
            raise DafuseError(
                "an experiment names its own methods; --method.OPTION is for all of them"
            )
        else:
            option = key.removeprefix("--method.").replace("-", "_").removeprefix("no_")
            common[option] = [word]
            typed = rest if equals else common[option]
    return common, rest


def parsed(
    rest: list[str], texts: dict[str, list[str]], experiment: Experiment
) -> tuple["RunConfig", dict[str, Any]]:
    """Read the options of all runs and those of methods, checked as `dafuse run` checks them."""
    base, common = parse(rest), dict[str, Any](texts)  # what no method has, a plan refuses
    from dafuse.methods.registry import find_method, with_defaults

    for name in dict.fromkeys(options["name"] for options in experiment.runs):
        own = [key for key in texts if key in with_defaults(name, {})]
        if own:
            said = [word for key in own for word in texts[key]]
            method = parse([*rest, f"--method={name}", *said]).method
            find_method(name).validate({key: method[key] for key in with_defaults(name, {})})
            common |= {key: method[key] for key in own}
    return base, common
