"""Class memory: the bytes that each kind keeps for a class, and the accuracy that it costs."""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dafuse.benchmarks.rounds import BenchRow, Measured, compared, reason
from dafuse.benchmarks.setting import SEED, Parts, Setting
from dafuse.engine.config import RunConfig
from dafuse.engine.matrix import AccuracyMatrix
from dafuse.engine.run import prepare, run
from dafuse.heads.gaussians import KINDS
from dafuse.sealed import read_sealed

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class MemorySizes:
    train: int  # images of each character
    test: int
    increment: int
    method: dict[str, Any]


LEARNED = MemorySizes(25, 20, 10, {"epochs": 3, "lr": 0.02, "align_epochs": 10})
SIZES = {
    "gpu": LEARNED,
    "cpu": LEARNED,
    "quick": MemorySizes(1, 1, 31, {"epochs": 1, "align_epochs": 1, "align_samples": 16}),
}


def parts(setting: Setting) -> Parts:
    return {"glyphs": partial(_measure, setting, setting.sizes(SIZES))}


def _measure(setting: Setting, sizes: MemorySizes) -> list[BenchRow]:
    """Train once with the first kind and record it; the others replay that."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = RunConfig(
            method={"name": "daf", **sizes.method},
            data={"name": "glyphs", "train_per_class": sizes.train, "test_per_class": sizes.test},
            increment=sizes.increment,
            seed=SEED,
            device=setting.device,  # type: ignore[arg-type]
        )
        bench = prepare(config)
        kinds = [(kind, dtype) for kind in KINDS for dtype in DTYPES]
        found: dict[str, tuple[Measured, Measured]] = {}
        recorded = ""
        with setting.progress.bar("class memory", len(kinds)) as bar:
            for kind, dtype in kinds:
                name = f"{kind}, {dtype}"
                method = {**config.method, "memory": kind, "memory_dtype": dtype}
                how = {"replay": recorded} if recorded else {"record": True}
                mine = replace(config, method=method, out=str(root / name), **how)
                try:
                    run(mine, bench=bench)
                    found[name] = _outcome(root / name)
                    recorded = recorded or mine.out or ""
                except Exception as error:  # the other kinds are still worth measuring
                    found[name] = (Measured(error=reason(error)),) * 2
                bar.advance(note=name)
    return _rows(found)


def _outcome(folder: Path) -> tuple[Measured, Measured]:
    """Return the bytes of statistics for each class, and the average accuracy."""
    results = read_sealed(folder / "results.json", "measure again")
    kept = results["tasks"][-1]["kept_bytes"]["statistics"] / len(results["classes"])
    metrics = AccuracyMatrix(results["correct"], results["total"]).metrics()
    return Measured([kept]), Measured([metrics["average"]])


def _rows(found: dict[str, tuple[Measured, Measured]]) -> list[BenchRow]:
    first = next(iter(found))
    rows: list[BenchRow] = []
    for position, (what, unit, relation) in enumerate(
        [("kept for each class", "B", "share"), ("average accuracy", "%", "difference")]
    ):
        base = first, found[first][position]
        for name, measured in found.items():
            against = None if name == first else base
            label = f"{name}, {what}"
            rows.append(compared(label, unit, measured[position], against, relation))  # type: ignore[arg-type]
    return rows
