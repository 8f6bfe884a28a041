"""The steps of an experiment or of a grid: listed, or made where it was asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from dafuse.commands.options import Cluster
from dafuse.commands.terminal import wide_console
from dafuse.engine.worker_place import ClusterShare
from dafuse.errors import DafuseError
from dafuse.files import make_folder

if TYPE_CHECKING:
    from dafuse.experiments.making import Step

MOST_PROCESSES = 1024


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Placement of runs: one after the other here, or several at a time.

    Args:
        parallel: make so many runs at a time, each in a process of this machine
        cluster: make runs as tasks of a Ray cluster; a single run spreads its images (methods that
            need features only)
        gpu_share: share of a GPU that each task of the cluster has; a whole one where there are
            GPUs if left out
        cpus: processors that each task of the cluster has
    """

    parallel: int | None = None
    cluster: Cluster = None
    gpu_share: Annotated[float | None, Parameter(name="--gpu-share")] = None
    cpus: int | None = None

    @property
    def share(self) -> ClusterShare:
        return ClusterShare(self.gpu_share, self.cpus or 1)

    def require_valid(self) -> None:
        if self.parallel is not None and not 1 <= self.parallel <= MOST_PROCESSES:
            raise DafuseError(f"--parallel must be from 1 to {MOST_PROCESSES}, not {self.parallel}")
        if self.parallel is not None and self.cluster is not None:
            raise DafuseError("either --parallel or --cluster, not both")
        if self.cluster is None and (self.gpu_share is not None or self.cpus is not None):
            option = "--gpu-share" if self.gpu_share is not None else "--cpus"
            raise DafuseError(f"{option} is about a task of a cluster: say --cluster, too")
        if self.cpus is not None and not 1 <= self.cpus <= MOST_PROCESSES:
            raise DafuseError(f"--cpus must be from 1 to {MOST_PROCESSES}, not {self.cpus}")
        share = self.gpu_share
        if share is not None and not (0 <= share <= 1 or share == int(share) > 0):
            raise DafuseError(
                f"--gpu-share must be a share from 0 to 1, or a whole number of GPUs, not {share:g}"
            )


def runs_folder(name: str) -> Path:
    out = Path(name)
    if out.exists() and not out.is_dir():
        raise DafuseError(f"--out {out} is not a folder")
    return out


def make_steps(steps: "Sequence[Step]", out: Path, placement: Placement) -> list[str]:
    """Make the steps that are not finished, as it was asked for. Returns those that failed."""
    make_folder(out)
    from dafuse.engine.display import TerminalProgress
    from dafuse.experiments.making import make_in_turn, make_together
    from dafuse.experiments.run_workers import LocalProcesses, RayTasks, require_shared
    from dafuse.experiments.steps_table import StepsTable

    if placement.cluster is not None:
        from dafuse.cluster import joined

        with joined(placement.cluster, TerminalProgress()) as ray:
            require_shared(ray, out)
            tasks = RayTasks(ray, placement.share)
            with tasks, StepsTable(steps).drawn() as table:
                return make_together(steps, tasks, table)
    if placement.parallel is not None and placement.parallel > 1:
        with LocalProcesses(placement.parallel) as workers, StepsTable(steps).drawn() as table:
            return make_together(steps, workers, table)
    with TerminalProgress() as progress:
        return make_in_turn(steps, progress)


def missing_of(steps: "Sequence[Step]") -> list[str]:
    """Return the steps that are not finished, and how far each is."""
    from dafuse.experiments.making import name_of

    return [f"{name_of(step)} ({step.state()})" for step in steps if not step.finished()]


def tell_missing(steps: "Sequence[Step]", missing: Sequence[str], failed: Sequence[str]) -> None:
    """Say what is missing, and raise what failed."""
    from dafuse.experiments.making import count_of

    if missing:
        print(f"missing: {'; '.join(missing)}")
    if failed:
        raise DafuseError(f"{len(failed)} of {count_of(steps)} failed: {'; '.join(failed)}")


def show_plan(steps: "Sequence[Step]", known: Sequence[float | None], out: Path) -> None:
    from dafuse.experiments.making import count_of, name_of

    states = [step.state() for step in steps]
    told_of = list(zip(steps, states, known, strict=True))
    damaged = states.count("damaged")
    new = [step for step, state, sure in told_of if sure is None and state != "damaged"]
    guessed, why_not = _guessed(new)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("run", "seed", "how far", "seconds to go", "folder", "how"):
        table.add_column(heading, overflow="fold")
    for step, state, sure in told_of:
        guess = guessed.get(name_of(step))
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
    summary = f"{count_of(steps)}: {'; '.join(told)}"
    console.print(summary, highlight=False, markup=False, soft_wrap=True)


def _guessed(steps: "Sequence[Step]") -> tuple[dict[str, float], str]:
    """Guessed seconds of steps that were never timed, by name; or why there are none."""
    if not steps:
        return {}, ""
    from dafuse.experiments.guess import Guess
    from dafuse.experiments.making import name_of

    try:
        guess = Guess(steps[0].config)
        return {name_of(step): step.guessed(guess) for step in steps}, ""
    except DafuseError as error:
        return {}, str(error)


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"
