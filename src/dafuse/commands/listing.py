"""`dafuse list methods|data|backbones|recipes|experiments`: what there is, one line each.

Without torch it lists the methods that can be taught, and says what it cannot list.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from dafuse.methods.contract import Method


def listing(
    what: Literal["methods", "data", "backbones", "recipes", "experiments"] | None = None, /
) -> None:
    """List what there is.

    Args:
        what: one of them; all if left out
    """
    console = Console()
    for name in [what] if what else LISTS:
        try:
            table = LISTS[name]()
        except ModuleNotFoundError:
            if what:
                raise
            console.print(f"{name}: pip install 'dafuse[torch]' to list them", markup=False)
            continue
        table.title = None if what else name
        console.print(table)


def methods() -> Table:
    from dafuse.taught.table import LIGHT
    from dafuse.taught.table import METHODS as TAUGHT

    if find_spec("torch") is None:
        extra = {name: "" if name in LIGHT else "; pip install 'dafuse[torch]'" for name in TAUGHT}
        light = [(name, one.what + extra[name]) for name, one in TAUGHT.items()]
        return _table(("name", "what dafuse learn --method NAME teaches"), light)
    from dafuse.methods.registry import METHODS

    rows = []
    for name, cls in METHODS.items():
        images = "keeps images" if cls.keeps_images else "keeps no images"
        streams = "; learns streams without tasks" if cls.observes else ""
        taught = f"; can be taught: dafuse learn --method {name}" if name in TAUGHT else ""
        taught += " (without torch)" if name in LIGHT else ""
        facts = f"{_passes(cls)}; {images}; assumes {cls.assumes}{streams}{taught}"
        rows.append((name, f"{cls.summary}\nkeeps {cls.keeps}\n{facts}\n{cls.paper}\n"))
    return _table(("name", "what it is, keeps, costs and assumes"), rows)


def _passes(cls: "type[Method]") -> str:
    after_1, after_2, after_10 = (cls.passes(tasks, {}) for tasks in (1, 2, 10))
    if after_1 == after_10:
        return f"{after_1} forward pass{'es' if after_1 > 1 else ''} for a prediction"
    counts = f"{after_1}, {after_2} and {after_10}"
    return f"forward passes for a prediction after 1, 2 and 10 tasks: {counts}"


def data() -> Table:
    from dafuse.data.registry import DATASETS, availability

    rows = []
    for name, source in DATASETS.items():
        here, where = availability(name)
        summary = (source.__doc__ or "").partition("\n")[0]
        rows.append((name, summary, where if here else "not here; dafuse doctor says what to do"))
    return _table(("name", "what it is", "where"), rows)


def backbones() -> Table:
    from dafuse.backbones.registry import BACKBONES, CHOICES
    from dafuse.backbones.weights import exported, locate

    choices, rows = {tag: f"--backbone {name}: " for name, tag in CHOICES.items()}, []
    for tag, backbone in BACKBONES.items():
        path, source = locate(tag)
        path = exported(tag) or path
        assert backbone.cost is not None  # as all that are named here
        pixels, parameters, download, milliseconds = backbone.cost
        takes = (
            f"{choices.get(tag, '')}{pixels} px, {parameters:.1f} million parameters, "
            f"{milliseconds:.0f} ms an image, "
            + (f"download {download} MB" if download else "no download")
        )
        where = f"weights: {'on the ' + source if path is None else path}"
        rows.append((tag, f"{takes}\n{backbone.summary}\n{where}\n"))
    table = _table(("tag", "what it is and takes"), rows)
    table.caption = (
        "ms by onnxruntime on 2 cores (dafuse bench backbones). Any other tag of timm works, too; "
        "which methods go with it: docs/backbones.md"
    )
    table.caption_justify = "left"
    return table


def recipes() -> Table:
    from dafuse.commands.recipes import RECIPES, expected

    rows = []
    for path in sorted(RECIPES.glob("*.yaml")):
        first = path.read_text().partition("\n")[0].removeprefix("#").strip()
        named = ("average", "final", "prediction")
        shown = ", ".join(f"{k} {v}" for k, v in expected(path).items() if k in named)
        rows.append((path.stem, first, shown))
    return _table(("name", "what it is", "expected"), rows)


def experiments() -> Table:
    from dafuse.experiments.declared import EXPERIMENTS

    rows = []
    for name, one in EXPERIMENTS.items():
        runs = "cells" if one.cells else len(one.runs) * len(one.settings)
        rows.append((name, one.shows, f"{runs} x {len(one.seeds)}"))
    return _table(("name", "what it shows", "runs x seeds"), rows)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(*header, box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.overflow = "fold"  # nothing is cut off
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*map(escape, row))  # dafuse[torch] is no markup
    return table


LISTS = {
    "methods": methods,
    "data": data,
    "backbones": backbones,
    "recipes": recipes,
    "experiments": experiments,
}
