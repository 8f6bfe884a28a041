"""`dafuse report RUN... [--out FOLDER] [--ledger FILE]`: a page, tables, pictures of runs."""

from dafuse.commands.parsing import Parser
from dafuse.errors import DafuseError
from dafuse.report.outputs import report, write_ledger
from dafuse.wording import shown_lines

VIT_B = "vit_base_patch16_224.augreg_in21k"  # the paper's network, whose weights few have at hand


def main(arguments: list[str]) -> None:
    parser = Parser(
        prog="dafuse report",
        description="Write a page, tables (md, csv, tex) and pictures about runs.",
    )
    parser.add_argument("runs", nargs="+", help="run folders, or folders that contain some")
    parser.add_argument("--out", default="report", help="folder for what is written")
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        help="also write a ledger: a row for each run, with its origin, its command, and the "
        "numbers that a recipe with the same setting expects (CSV if FILE ends in .csv, else "
        "Markdown)",
    )
    parser.add_argument(
        "--with-recipes",
        action="store_true",
        help="in the ledger, also list every ViT-B/16 recipe without a run",
    )
    parser.add_argument(
        "--no-speeds",
        action="store_true",
        help="leave speeds out of the ledger, because runs shared their device with others",
    )
    options = parser.parse_args(arguments)
    if (options.with_recipes or options.no_speeds) and not options.ledger:
        raise DafuseError("--with-recipes and --no-speeds are about a ledger: say --ledger FILE")
    print(shown_lines(report(options.runs, options.out).split("\n")))
    if options.ledger:
        from dafuse.commands.run import RECIPES, expected, read_recipe
        from dafuse.report.settings import Recipe

        paths = sorted(RECIPES.glob("*.yaml"))
        recipes = [Recipe(path.stem, read_recipe(path.stem), expected(path)) for path in paths]
        listed = [r for r in recipes if options.with_recipes and r.setting("backbone") == VIT_B]
        speeds = not options.no_speeds
        print(write_ledger(options.runs, options.ledger, recipes, listed, speeds))
