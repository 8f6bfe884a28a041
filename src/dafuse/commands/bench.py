"""`dafuse bench [NAME ...]`: how fast it is, beside what it is to be compared with.

Ratios are of variants that take turns in one process. What fails is said, and the rest goes on.
"""

import gc
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from dafuse.commands.options import Device
from dafuse.commands.terminal import wide_console
from dafuse.errors import DafuseError
from dafuse.files import require_writable, write_json
from dafuse.taught.table import before_torch

if TYPE_CHECKING:
    from dafuse.benchmarks.rounds import BenchRow
    from dafuse.benchmarks.setting import Setting

FORMAT = 1
BENCHMARKS = {  # name -> what it measures; its module is bench_NAME in dafuse.benchmarks
    "training": "optimiser steps against a plain loop and the chip's arithmetic",
    "fisher": "gradient and Fisher against a task's training",
    "alignment": "classifier alignment against the published way",
    "inference": "the global adapter against the bare network and many adapters",
    "growth": "seconds and bytes of a task, early and late in a stream of 100",
    "memory": "bytes and accuracy of each kind of class memory",
    "cpu": "one learning step on two threads against the plain loop",
    "lesson": "a lesson by lift against the forward pass, a stream by lift against DAF",
    "backbones": "milliseconds for an image by each named network, on the CPU",
    "serving": "dafuse serve by two workers against one: requests a second, p99",
    "product": "cold: one prediction; a lesson against a plain script; many classes against few",
    "scale": "lessons and predictions of 10 to 100,000 classes, bytes, memory of 10 million images",
}
Names = Annotated[
    str,
    Parameter(
        help="all if left out: " + "; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
    ),
]
Counts = Annotated[Sequence[int], Parameter(consume_multiple=1)]
LEAST_WIDTH = 16  # of made-up features
OF_ANY_BACKBONE = ("training", "fisher", "inference", "growth", "backbones")


def bench(
    *names: Names,
    rounds: int = 5,
    backbone: str | None = None,
    device: Device = "auto",
    out: str = "bench.json",
    quick: bool = False,
    demo: bool = False,
    classes: Counts = (),
    images: Counts = (),
    width: int | None = None,
) -> None:
    """Measure speed and memory beside what they are to be compared with; print and write a table.

    Variants take turns in one process. Weights are random: nothing is downloaded.

    Args:
        rounds: turns of each variant
        backbone: exact timm tag, in place of the benchmark's own
        out: file for the numbers
        quick: take tiny sizes: does everything work?
        demo: with cpu: time demo-research too
        classes: with scale: how many are known before a lesson; the first is compared with, and
            parts with other numbers of classes are left out
        images: with scale: how many are added up; the first is compared with
        width: with scale: columns of made-up features
    """
    names = names or tuple(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise DafuseError(
            f"no benchmark is called {unknown[0]!r}; there are {', '.join(BENCHMARKS)}"
        )
    if rounds < 1:
        raise DafuseError(f"rounds must be 1 or more, not {rounds}")
    if demo and "cpu" not in names:
        raise DafuseError("--demo belongs to the benchmark cpu")
    of_scale = {"classes": classes, "images": images, "width": width}
    if given := [name for name, value in of_scale.items() if value not in ((), None)]:
        if "scale" not in names:
            raise DafuseError(f"--{given[0]} belongs to the benchmark scale")
        if min([*classes, *images, 1]) < 1 or (width is not None and width < LEAST_WIDTH):
            raise DafuseError(f"classes and images must be 1 or more, width {LEAST_WIDTH} or more")
    if backbone and not set(names) & set(OF_ANY_BACKBONE):
        raise DafuseError(f"--backbone is for {', '.join(OF_ANY_BACKBONE)}")
    require_writable(out)
    if names == ("backbones",):  # as where people teach and predict
        before_torch()
    from dafuse.benchmarks.setting import Setting
    from dafuse.engine.display import TerminalProgress

    with TerminalProgress() as progress:
        scale = (tuple(classes), tuple(images), width)
        setting = Setting(device, rounds, backbone, quick, demo, *scale, progress)
        report = _head(setting)
        start, rows = time.perf_counter(), report["rows"]
        for name in names:
            for part, row in measure(name, setting):
                rows.append({"benchmark": name, "part": part, **row.as_json()})
            report["seconds"] = time.perf_counter() - start
            write_json(out, report)  # after each, so that what was measured is not lost
    _show(rows, report["device"], out)
    if failed := [f"{row['part']}, {row['what']}" for row in rows if row["error"]]:
        raise DafuseError(f"{len(failed)} of {len(rows)} rows failed: {'; '.join(failed)}")


def measure(name: str, setting: "Setting") -> "list[tuple[str, BenchRow]]":
    """The rows of each part of a benchmark; a part that fails is a row that says why."""
    from dafuse.benchmarks.rounds import BenchRow, Measured, reason

    rows: list[tuple[str, BenchRow]] = []
    for part, rows_of in import_module(f"dafuse.benchmarks.bench_{name}").parts(setting).items():
        setting.progress.say(f"{name}: {part}")
        try:
            rows += [(part, row) for row in rows_of()]
        except Exception as error:  # the others are worth having all the same
            setting.progress.say(f"failed: {reason(error)}")
            rows.append((part, BenchRow("all", "", Measured(error=reason(error)))))
        _forget()
    return rows


def _forget() -> None:
    """Free what a part has compiled and holds on the device, before the next one."""
    import torch

    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _head(setting: "Setting") -> dict[str, Any]:
    from dafuse.engine.devices import describe
    from dafuse.engine.provenance import command_line, versions

    try:
        device = describe(setting.fabric().device)
    except DafuseError as error:
        device = str(error)
    return {
        "format": FORMAT,
        "command": command_line(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "device": device,
        "rounds": setting.rounds,
        "quick": setting.quick,
        "rows": [],
    }


_OF = {"speed-up": "×", "share": "of", "difference": "from"}  # the baseline


def _show(rows: Sequence[dict[str, Any]], device: str, out: str) -> None:
    console = wide_console()
    table = Table(box=None, padding=(0, 2, 0, 0), title=f"on {device}", title_justify="left")
    for heading in ("what", "median (min to max)", "ratio (min to max)", "goal"):
        table.add_column(heading)
    before = ""
    for row in rows:
        heading = f"{row['benchmark']}: {row['part']}"
        if heading != before:
            table.add_row(f"[bold]{heading}[/]")
        table.add_row(*cells(row))
        before = heading
    console.print(table)
    console.print(f"numbers: {out}", markup=False, highlight=False, soft_wrap=True)


def cells(row: dict[str, Any]) -> list[str]:
    """A row as the terminal shows it."""
    what = f"  {row['what']}"
    if row["error"]:
        return [what, f"failed: {row['error']}"]
    unit, relation, goal = row["unit"], row["relation"], row["goal"]
    median = f"{_amount(row['value'])} {unit}"
    if len(row["rounds"]) > 1:
        median += f" ({_amount(row['low'])} to {_amount(row['high'])})"
    ratio = bound = ""
    if row["ratio"] is not None:
        ratio = f"{_ratio(row['ratio'], relation)} {_OF[relation]} {row['baseline']}"
        if row["ratio_low"] != row["ratio_high"]:
            low, high = (_ratio(row[f"ratio_{end}"], relation) for end in ("low", "high"))
            ratio += f" ({low} to {high})"
    if goal is not None:
        sign, limit = ("≥", goal["least"]) if goal["least"] is not None else ("≤", goal["most"])
        shown = _ratio(limit, relation) if goal["of"] == "ratio" else _amount(limit)
        bound = f"{sign} {shown}: {'met' if row['met'] else 'missed'}"
    return [what, median, ratio, bound]


def _amount(value: float) -> str:
    """Three significant digits, and every digit before the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 4
    return f"{value:,.{digits}f}"


def _ratio(value: float, relation: str) -> str:
    if relation == "difference":
        return f"{value:+.2f}"
    return f"{100 * value:.1f} %" if relation == "share" else f"{value:.2f}"
