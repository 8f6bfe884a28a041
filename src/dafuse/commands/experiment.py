"""`dafuse experiment NAME [--seeds ...] [options of dafuse run]`: a table or figure of the paper.

Runs that are finished are taken as they are, those begun go on, the others are made; one that fails
does not take the others down. The report is made from the run folders alone.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console
from rich.table import Table

from dafuse.commands.run import parse
from dafuse.commands.terminal import show_results
from dafuse.errors import DafuseError
from dafuse.experiments.declared import EXPERIMENTS
from dafuse.progress import Progress

if TYPE_CHECKING:
    from dafuse.experiments.plan import Planned


def main(arguments: list[str]) -> None:
    options, rest = _parser().parse_known_args(arguments)
    if options.name not in EXPERIMENTS:
        raise DafuseError(
            f"no experiment is called {options.name!r}; there are {', '.join(EXPERIMENTS)}"
        )
    common, rest = _method_options(rest)
    base = parse(rest)
    from dafuse.experiments.plan import plan

    experiment = EXPERIMENTS[options.name]
    out = Path(options.out or Path("runs") / "experiments" / options.name)
    planned = plan(experiment, base, options.seeds or experiment.seeds, out, common)
    if options.dry_run:
        _show_plan(planned)
        return
    from dafuse.engine.display import TerminalProgress

    with TerminalProgress() as progress:
        failed = run_all(planned, progress)
    done = [run.folder for run in planned if run.found() is not None]
    if done:
        show_results(done, page=out / "report.html")
    missing = [f"{run.label}, seed {run.config.seed}" for run in planned if not run.finished()]
    if missing:
        print(f"missing: {'; '.join(missing)}")
    if failed:
        raise DafuseError(f"{len(failed)} of {len(planned)} runs failed: {'; '.join(failed)}")


def run_all(planned: "Sequence[Planned]", progress: Progress) -> list[str]:
    """Make every run that is not finished; what failed, and why."""
    from dafuse.engine.run import prepare, run

    failed: list[str] = []
    bench = None
    for number, each in enumerate(planned, 1):
        progress.say(f"--- {number}/{len(planned)}: {each.label}, seed {each.config.seed}")
        if each.finished():
            progress.say(f"{each.folder} is finished; nothing to compute")
            continue
        bench = bench or prepare(each.config, progress)
        try:
            run(each.ready(), progress, bench)
        except Exception as error:  # the others are worth having all the same
            why = (
                str(error) if isinstance(error, DafuseError) else f"{type(error).__name__}: {error}"
            )
            failed.append(f"{each.label}, seed {each.config.seed} ({why})")
            progress.say(f"failed: {why}")
    return failed


def _show_plan(planned: "Sequence[Planned]") -> None:
    from dafuse.experiments.plan import estimates

    table = Table("run", "seed", "how far", "how", "seconds to go", box=None, padding=(0, 2, 0, 0))
    to_go, unknown = 0.0, 0
    for run, seconds in zip(planned, estimates(planned), strict=True):
        found = run.found()
        state = "to do" if found is None else found.mark or "finished"
        replay = run.config.replay
        how = f"replays {Path(replay).name}" if replay else "records" if run.config.record else ""
        shown = "?" if seconds is None else f"{seconds:.0f}"
        table.add_row(run.label, str(run.config.seed), state, how, shown)
        to_go, unknown = to_go + (seconds or 0), unknown + (seconds is None)
    console = Console()
    console.print(table)
    rest = f" and {unknown} runs of whose kind none is finished yet" if unknown else ""
    console.print(f"{len(planned)} runs, about {to_go:.0f} s to go{rest}", highlight=False)


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
    parser.add_argument("--out", help="folder for the runs; runs/experiments/NAME if left out")
    parser.add_argument("--dry-run", action="store_true", help="list the runs, compute nothing")
    return parser
