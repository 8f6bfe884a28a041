"""`dafuse demo-research`: DAF on the embedded default, with three baselines beside it."""

from dataclasses import replace
from pathlib import Path

from dafuse.commands.terminal import show_results
from dafuse.engine.config import RunConfig
from dafuse.report.runs import load_run


def demo(*, out: str = "runs/demo-research", seed: int = 1993) -> None:
    """Learn the drawn characters task by task with DAF, and with three baselines.

    These are the last task's adapter alone, lift and SimpleCIL. A table and a report page show the
    result. Needs no download.

    Args:
        out: folder for the four runs
        seed: decides the class order and everything random
    """
    folder = Path(out)
    from dafuse.engine.display import TerminalProgress
    from dafuse.engine.run import prepare, run

    configs = demo_configs(folder, seed)
    with TerminalProgress() as progress:
        progress.say("62 characters in tasks of 10, drawn on the spot; backbone inside the package")
        bench = prepare(configs[0], progress)
        for config in configs:
            progress.say(f"--- {Path(config.folder()).name}")
            run(config, progress, bench)
    runs = [load_run(config.folder()) for config in configs]
    show_results(runs, page=folder / "report.html")


def demo_configs(out: Path, seed: int) -> list[RunConfig]:
    """DAF, the same training with only the last task's adapter kept; two that train nothing."""
    training = {"epochs": 5, "lr": 0.02, "align_epochs": 10}  # short, for two CPU cores
    daf = RunConfig(
        method={"name": "daf", **training},
        data={"name": "glyphs", "train_per_class": 10, "test_per_class": 8},
        increment=10,
        seed=seed,
        out=str(out / "daf"),
    )
    last = replace(daf, method={**daf.method, "rule": "last"}, out=str(out / "last-adapter"))
    lift, simple = (
        replace(daf, method={"name": name}, out=str(out / name)) for name in ("lift", "simplecil")
    )
    return [daf, last, lift, simple]
