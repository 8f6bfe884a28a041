"""Runs beside each other: which ones differ in their seed only, and what to call them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dafuse.engine.config import NOT_IN_HASH, flatten
from dafuse.report.runs import RunResult


@dataclass
class Group:
    """Runs that are equal in everything but the seed, under the name that tells them apart."""

    name: str
    runs: list[RunResult]

    @property
    def label(self) -> str:
        """The name, with how far its runs are where they are not at their end."""
        mark = self.runs[0].mark
        return f"{self.name}, {mark}" if mark else self.name

    def title(self, run: RunResult) -> str:
        """The name of one run of the group."""
        return f"{self.name}, seed {run.seed}" if len(self.runs) > 1 else self.name


def group_runs(runs: Iterable[RunResult]) -> list[Group]:
    """Runs that differ only in their seed together, in the order in which they come.

    The number of finished tasks counts as a difference, since averages over fewer tasks are higher.
    """
    runs = list(runs)
    everything = [_options(run) for run in runs]
    groups: dict[str, Group] = {}
    for run, options in zip(runs, everything, strict=True):
        key = json.dumps([len(run.matrix), options], sort_keys=True)
        if key not in groups:
            groups[key] = Group(_name(options, everything), [])
        groups[key].runs.append(run)
    return list(groups.values())


def _name(options: dict[str, Any], everything: list[dict[str, Any]]) -> str:
    """The method's name, and those settings in which it differs from what it is compared with."""
    differences = []
    for key, value in options.items():
        section, _, option = key.partition(".")
        peers, kind = everything, f"{section}.name"
        if section in ("method", "data"):  # another method or data set need not have this option
            peers = [
                other for other in everything if key == kind or other.get(kind) == options.get(kind)
            ]
        if key == "method.name" or all(other.get(key) == value for other in peers):
            continue
        if key in ("data.name", "backbone"):
            differences.append(str(value))
        else:
            differences.append(f"{option if section == 'method' else key}={_short(value)}")
    method = options["method.name"]
    return f"{method} ({', '.join(differences)})" if differences else method


def _options(run: RunResult) -> dict[str, Any]:
    """All of the config but the seed and what cannot change a result."""
    ignored = ("seed", *NOT_IN_HASH)
    return {key: value for key, value in flatten(run.config).items() if key not in ignored}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 32 else text[:31] + "…"
