"""The paper's tables and figures, and some more, as experiments. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from dafuse.backbones.depths import DEPTHS

Options = dict[str, Any]  # a method's name and the options that differ from its defaults

EXEMPLAR_FREE = (
    "finetune simplecil aper lift ranpac layup klda anacp slca ssiat ease mos tuna "
    "l2p dualprompt coda daf daf-paper"
)
RULES = ("last", "static", "mean", "dynamic")  # fusion rules of DAF, the paper's last
MEASUREMENT = "measurement"  # the label of a step that is not a run
REHEARSAL = "icarl memo foster daf"


@dataclass(frozen=True)
class Experiment:
    """A set of runs, and the outputs made of them: names in `report.outputs`."""

    shows: str
    runs: tuple[Options, ...]
    tables: tuple[str, ...] = ("table",)
    figure: str = "accuracy"
    seeds: tuple[int, ...] = (1993,)
    settings: tuple[Options, ...] = ({},)  # options of `dafuse run`; every run is made with each
    measures: bool = False  # also DAF's approximations, at what the first run recorded
    cells: bool = False  # no runs, but classifiers on few images of few classes: `few_images.py`


@dataclass(frozen=True)
class MeasureOptions:
    """Options of a measurement of DAF's approximations.

    Args:
        tasks: tasks to measure, evenly spread over the stream
        images: training images of each of these tasks
        probes: vectors of random signs per tensor for the Hessian's diagonal
        coordinates: entries of each tensor with an exact second derivative
    """

    tasks: int = 4
    images: int = 256
    probes: int = 32
    coordinates: int = 50


def _named(names: str) -> tuple[Options, ...]:
    return tuple({"name": name} for name in names.split())


def _each(name: str, **varied: Sequence[Any]) -> tuple[Options, ...]:
    """Return the method with every combination of these values."""
    return tuple(
        {"name": name, **dict(zip(varied, values, strict=True))}
        for values in product(*varied.values())
    )


EXPERIMENTS: dict[str, Experiment] = {
    "main-table": Experiment(
        "all exemplar-free methods, average and final accuracy (Table 1)", _named(EXEMPLAR_FREE)
    ),
    "curves": Experiment(
        "accuracy after each task, to be run on the second backbone",
        _named("simplecil aper ranpac ssiat ease mos tuna daf"),
    ),
    "rehearsal": Experiment("DAF beside methods that keep 20 images per class", _named(REHEARSAL)),
    "efficiency": Experiment(
        "accuracy against training speed, coloured by inference speed (Figure 1)",
        _named(
            "aper lift ranpac layup klda anacp slca ssiat ease mos tuna l2p dualprompt coda daf"
        ),
        figure="efficiency",
    ),
    "ablation": Experiment(
        "initialisation x rule, the full grid, the mean of all adapters among the rules",
        _each(
            "daf",
            init=["robust", "previous", "random"],
            rule=RULES,
        ),
        tables=("grid", "table"),
    ),
    "initialisation": Experiment(
        "three initialisations, the last adapter alone and fused (Table 2)",
        _each("daf", init=["random", "previous", "robust"], rule=["last", "dynamic"]),
        tables=("grid", "table"),
    ),
    "alpha": Experiment(
        "stability, plasticity, average and final accuracy over alpha",
        _each("daf", alpha=[0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0]),
        figure="sweep",
    ),
    "gamma": Experiment(
        "final accuracy over gamma",
        _each("daf", gamma=[0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0]),
        figure="sweep",
    ),
    "seeds": Experiment(
        "five class orders, mean and std, paired differences to DAF",
        (
            {"name": "daf"},
            {"name": "daf", "rule": "mean"},
            *_named("lift ranpac klda tuna"),
            {"name": "layup", "tune": "first"},
            {"name": "anacp", "tune": "first"},
        ),
        tables=("table", "paired"),
        seeds=(1993, 1994, 1995, 1996, 1997),
    ),
    "retrieval": Experiment(
        "DAF and TUNA, with and without retrieval of task adapters", _named("daf-retrieval tuna")
    ),
    "approximations": Experiment(
        "how good DAF's approximations are: Fisher, Hessian, parabola and loss (not in the paper)",
        (
            {"name": "daf"},
            {"name": "daf", "fisher": "per_batch"},
            {"name": "daf", "first_task": "fuse"},
            {"name": "daf", "stats_adapter": "task"},
            {"name": "daf-paper"},
        ),
        tables=("table", "approximations"),
        figure="approximations",
        measures=True,
    ),
    "closed-form": Experiment(
        "features x heads in closed form, beside prototypes, RanPAC and DAF (not in the paper)",
        (
            *_each("lift", features=DEPTHS, width=[0, 5000], head=["ridge"]),
            *_each("lift", features=DEPTHS, head=["lda"]),
            *_named("simplecil ranpac layup klda anacp"),
            *_each("daf", rule=RULES, head=["aligned", "ridge", "lda"]),
        ),
        tables=("grid", "table"),
        figure="ranking",
    ),
    "streams": Experiment(
        "streams without tasks: accuracy on the classes seen at each point (not in the paper)",
        _named("lift simplecil layup klda anacp"),
        settings=({"stream": "online"}, {"stream": "blurry"}, {"stream": "repeated"}),
    ),
    "memory": Experiment(
        "accuracy against the bytes that lift keeps, pooled and class by class (not in the paper)",
        (
            *_each("lift", features=DEPTHS, width=[0, 2500, 5000]),
            *_each("lift", precision=["float32", "float64"]),
            *_each("lift", features=["all", "moments"], keep=["classwise"], rank=[2, 6, 16]),
        ),
        tables=("memory", "table"),
        figure="memory",
    ),
    "few-images": Experiment(
        "lift beside nearest mean, LDA, logistic and ridge regression on 1 to 500 images of 5 to "
        "200 classes (not in the paper)",
        (),
        tables=(),
        figure="",
        seeds=(1993, 1994, 1995, 1996, 1997),
        cells=True,
    ),
}
