"""Draw the log of a distillation: accuracy on photographs held out against images seen.

    python scripts/compact/curve.py runs/compact/log.jsonl docs/figures/distill_curve.svg \
        --teacher 63.4 58.9

The two numbers of `--teacher` are its top-1 and its nearest-mean accuracy on the same photographs.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

NAMES = {"top1": "top-1", "nearest_mean": "nearest mean"}


def read(log: Path) -> tuple[list[float], list[dict[str, float]]]:
    """The measured lines of a log, and the millions of images seen until each."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    before = max((line["images"] for line in lines if line["stage"] == "blocks"), default=0)
    measured = [line for line in lines if "top1" in line]
    if not measured:
        raise SystemExit(f"{log} measured nothing: was it made without --held-out?")
    return [(before + line["images"]) / 1e6 for line in measured], measured


def draw(log: Path, out: Path, teacher: list[float]) -> None:
    seen, measured = read(log)
    matplotlib.rcParams["svg.hashsalt"] = "dafuse"  # the same file from the same log
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for (name, words), theirs, colour in zip(NAMES.items(), teacher, ("C0", "C1"), strict=True):
        axes.plot(seen, [line[name] for line in measured], "o-", color=colour, label=words)
        axes.axhline(theirs, color=colour, ls=":", label=f"{words}, teacher")
    axes.set(xlabel="views seen, millions", ylabel="accuracy, %", xlim=(0, None))
    cosine = axes.twinx()
    cosine.plot(seen, [line["cosine"] for line in measured], "s--", color="grey")
    cosine.set_ylabel("cosine to the teacher (grey)", color="grey")
    axes.legend(loc="lower right", ncols=2, fontsize="small")
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--teacher", type=float, nargs=2, required=True)
    args = parser.parse_args()
    draw(args.log, args.out, args.teacher)


if __name__ == "__main__":
    main()
