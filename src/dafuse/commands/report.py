"""`dafuse report RUN... [--out FOLDER] [--ledger FILE]`: a page, tables, figures of runs."""

from typing import Annotated

from cyclopts import Parameter

from dafuse.errors import DafuseError
from dafuse.report import outputs
from dafuse.wording import shown_lines

VIT_B = "vit_base_patch16_224.augreg_in21k"  # the paper's network, whose weights few have at hand


def report(
    *runs: Annotated[str, Parameter(required=True)],
    out: str = "report",
    ledger: str | None = None,
    with_recipes: bool = False,
    speeds: bool = True,
) -> None:
    """Write a page, tables (md, csv, tex) and figures about runs.

    Args:
        runs: run folders, or folders that contain some
        out: folder for what is written
        ledger: a file to write a ledger to, too: a row for each run, with its origin, its command,
            and the numbers that a recipe with the same setting expects (CSV if it ends in .csv,
            else Markdown)
        with_recipes: in the ledger, also list every ViT-B/16 recipe without a run
        speeds: list speeds in the ledger; leave them out where runs shared their device with others
    """
    if (with_recipes or not speeds) and not ledger:
        raise DafuseError("--with-recipes and --no-speeds are about a ledger: say --ledger FILE")
    print(shown_lines(outputs.report(list(runs), out).split("\n")))
    if ledger:
        from dafuse.commands.recipes import RECIPES, expected, read_recipe
        from dafuse.report.settings import Recipe

        paths = sorted(RECIPES.glob("*.yaml"))
        recipes = [Recipe(path.stem, read_recipe(path.stem), expected(path)) for path in paths]
        listed = [r for r in recipes if with_recipes and r.setting("backbone") == VIT_B]
        print(outputs.write_ledger(list(runs), ledger, recipes, listed, speeds))
