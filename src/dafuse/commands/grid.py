"""Grids: `dafuse run ... --seeds 5 --method.alpha 0.25,0.5,1`, every combination of some values.

Commas separate values of options that are numbers, names of a choice, or true and false, and those
of --method, --data and --backbone. Lists in brackets are one value, and so is any other text: a
path may have commas.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dafuse.commands.plans import (
    Placement,
    make_steps,
    missing_of,
    runs_folder,
    show_plan,
    tell_missing,
)
from dafuse.commands.terminal import show_results
from dafuse.data.registry import DATASETS
from dafuse.engine.config import RunConfig
from dafuse.errors import DafuseError
from dafuse.report.outputs import write_outputs

if TYPE_CHECKING:
    from dafuse.experiments.plan import PlannedRun

NAMES = ("--method", "--backbone")  # words without commas
MOST_SEEDS = 10_000
TABLES = ("table", "intervals", "grid", "paired")
NOT_HERE = {
    "record": "it records what it can use again",
    "replay": "it replays what it finds recorded",
}


def combinations(arguments: Sequence[str], kinds: Mapping[str, bool]) -> Iterator[list[str]]:
    """Yield the arguments of each run: one value for each option that was given several.

    Args:
        arguments: what is typed, without a recipe
        kinds: whether a value of the option can be split at commas
    """
    words, axes = list(arguments), dict[int, list[str]]()
    last: dict[str, int] = {}
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if not option.startswith("--"):
            continue
        known = spelled(option)
        if not equals:
            value = words[place + 1] if place + 1 < len(words) else ""
            value = "" if value.startswith("--") else value
        axes.pop(last.get(known, -1), None)  # of two values the last one counts
        last[known] = place
        if len(values := _split(known, value, kinds)) > 1:
            axes[place] = values
    skipped = {place + 1 for place in axes if "=" not in words[place]}
    for chosen in product(*axes.values()):
        value_at = dict(zip(axes, chosen, strict=True))
        yield [
            f"{word.partition('=')[0]}={value_at[place]}" if place in value_at else word
            for place, word in enumerate(words)
            if place not in skipped
        ]


def spelled(option: str) -> str:
    """Return an option in the one way in which it is declared."""
    return option.replace("_", "-").replace(".name", "")


def _split(option: str, value: str, kinds: Mapping[str, bool]) -> list[str]:
    """Return the values that commas outside of brackets separate."""
    names = option in NAMES or (option == "--data" and not Path(value).exists())
    if not (names or kinds.get(option, False)):
        return [value]
    values, depth = [""], 0
    for sign in value:
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            values.append("")
        else:
            values[-1] += sign
    if option == "--data" and not all(one in DATASETS or Path(one).exists() for one in values):
        return [value]  # a path that is not there
    if len(values) > 1 and not all(one.strip() for one in values):
        raise DafuseError(f"{option} {value}: there is nothing between two commas")
    return [one.strip() for one in values]


def listed_seeds(asked: str, takes: str) -> list[int]:
    """Return numbers with commas between them, each once; `1993,` is a list of one."""
    try:
        numbers = [int(one) for one in asked.removesuffix(",").split(",")]
    except ValueError:
        raise DafuseError(f"--seeds takes {takes}; not {asked}") from None
    return list(dict.fromkeys(numbers))


def seeds_of(asked: str | None, first: int) -> list[int]:
    """Return the seeds of `--seeds`: so many from the first one on, or those of a list (`7,`)."""
    if asked is None:
        return [first]
    numbers = listed_seeds(asked, "how many seeds, such as 5, or a list, such as 1993,7")
    if "," in asked:
        return numbers
    if not 1 <= numbers[0] <= MOST_SEEDS:
        raise DafuseError(f"--seeds {asked}: how many seeds must be from 1 to {MOST_SEEDS}")
    return [first + k for k in range(numbers[0])]


def seeded(configs: Sequence[RunConfig], asked: str | None, seed_given: bool) -> list[RunConfig]:
    """Return every configuration with every seed."""
    if asked is None:
        return list(configs)
    if seed_given and ("," in asked or len({config.seed for config in configs}) > 1):
        raise DafuseError(
            "either --seed or a list of --seeds, not both; --seeds 5 begins at --seed"
        )
    return [
        replace(config, seed=seed)
        for config in configs
        for seed in seeds_of(asked, configs[0].seed)
    ]


def run_grid(configs: Sequence[RunConfig], placement: Placement, dry_run: bool) -> None:
    """Make every run of the grid that is not finished, and a report over all."""
    shared = configs[0]
    for option, why in NOT_HERE.items():
        if getattr(shared, option):
            raise DafuseError(f"--{option} is not for a grid: {why}")
    out = runs_folder(shared.out or "runs")
    from dafuse.experiments.making import count_of
    from dafuse.experiments.plan import estimates, plan_grid

    planned = plan_grid([replace(config, out=None) for config in configs], out)
    file = out / _name(planned)
    if dry_run:
        show_plan(planned, list(estimates(planned, out)), out)
        print(f"makes {file}.html, .md and .png")
        return
    _require_openable(planned)
    failed = make_steps(planned, out, placement)
    missing = missing_of(planned)
    runs = [found for each in planned if (found := each.results()) is not None]
    if runs:
        title = f"grid of {count_of(planned)}"
        show_results(runs, file.with_name(f"{file.name}.html"), title=title, missing=missing)
        made = write_outputs(runs, file, title, TABLES, _figure(runs), missing)
        print("\n".join(line for line in made if not line.startswith("no ")))
    tell_missing(planned, missing, failed)


def _name(planned: "Sequence[PlannedRun]") -> str:
    """Return a name that no other grid has: the same command finds its files again."""
    hashes = sorted(each.config.hash() for each in planned)
    digest = hashlib.sha256("".join(hashes).encode()).hexdigest()
    methods = dict.fromkeys(each.config.method["name"] for each in planned)
    data = dict.fromkeys(Path(each.config.data["name"]).name for each in planned)
    return f"grid-{'-'.join([*methods][:3])}-{'-'.join([*data][:3])}-{digest[:8]}"


def _figure(runs: Any) -> str:
    """Return the name of the figure: accuracy over the one option that is varied, or curves."""
    from dafuse.report.drawing import NothingToDraw
    from dafuse.report.outputs import FIGURES

    try:
        FIGURES["sweep"](runs)
    except NothingToDraw:
        return "accuracy"
    return "sweep"


def _require_openable(planned: "Sequence[PlannedRun]") -> None:
    """Refuse data, streams and pairs of method and network that no run could begin with."""
    from dafuse.backbones.load import build_backbone
    from dafuse.data.registry import open_dataset
    from dafuse.engine.run import require_suitable
    from dafuse.engine.streams import make_stream

    opened: dict[str, Any] = {}
    for each in planned:
        config = each.config
        network, data = f"{config.backbone} {config.normalize}", repr(config.data)
        if network not in opened:
            opened[network] = build_backbone(config.backbone, config.normalize)
        require_suitable(config, opened[network])
        if data not in opened:
            opened[data] = open_dataset(**config.data)
        make_stream(config, opened[data])
