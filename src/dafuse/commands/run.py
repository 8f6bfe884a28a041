"""`dafuse run [RECIPE] [--key value ...]`: signature = command line = recipe schema.

The parser is built for the method and the data set that are asked for, from their signatures, so
`--method.alpha` and `--data.root` are typed, documented and checked; an unknown key is an error.
What the command line says wins over what the recipe says.
"""

import json
import re
from argparse import SUPPRESS
from itertools import pairwise
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from dafuse.commands.bounded_yaml import read_yaml, require_bounded
from dafuse.commands.parsing import mistyped
from dafuse.commands.terminal import show_results
from dafuse.data.registry import DATASETS, resolve
from dafuse.engine.config import RunConfig, flatten
from dafuse.errors import DafuseError, did_you_mean
from dafuse.report.runs import load_run

RECIPES = Path(__file__).parent.parent / "recipes"
NAMED = ("method", "data")  # options that are a name with options of its own
LISTED = {"method": "methods", "data": "data"}
TYPES = {  # as jsonargparse names them
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'str'>": "text",
}
NOTES = "expected"  # a recipe's own section: what the run should give, and who says so


def main(arguments: list[str]) -> None:
    config = parse(arguments)
    from dafuse.engine.display import TerminalProgress
    from dafuse.engine.run import run

    with TerminalProgress() as progress:
        folder = run(config, progress)
    show_results([load_run(folder)], page=folder / "report.html", inside=folder)


def parse(arguments: list[str]) -> RunConfig:
    """The resolved configuration, or one line that says what is wrong with it."""
    recipe: dict[str, Any] = {}
    name = ""
    if arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        recipe = read_recipe(name)
    arguments = [_spell_out(argument) for argument in arguments]
    chosen = {key: _last_value(arguments, f"--{key}.name") for key in NAMED}
    parser = _parser(
        chosen["method"] or recipe.get("method", {}).get("name", "daf"),
        chosen["data"] or recipe.get("data", {}).get("name", "glyphs"),
    )
    kept = _kept(recipe, chosen)
    for key in kept:
        if f"--{key}" not in parser._option_string_actions:
            known = [option[2:] for option in parser._option_string_actions]
            hint = did_you_mean(key, known)
            raise DafuseError(f"the recipe {name} has {key!r}, which is no option{hint}")
    arguments = _as_arguments(kept) + arguments
    for argument in arguments:  # the parser reads values as YAML
        key, equals, value = argument.partition("=")
        named = equals and key.startswith("--")
        require_bounded(value if named else argument, key if named else "an option")
    values = _plain(parser.parse_args(arguments))
    values["data"]["name"], _ = resolve(values["data"]["name"])  # a path stands for its kind
    return RunConfig(**values)


def read_recipe(name: str) -> dict[str, Any]:
    """A recipe by path or by name, with `method: daf` spelled out as `method: {name: daf}`."""
    path = Path(name)
    if not path.is_file() and path.parent.name in ("", "recipes"):
        path = RECIPES / path.with_suffix(".yaml").name
    if not path.is_file():
        hint = did_you_mean(path.stem, [recipe.stem for recipe in RECIPES.glob("*.yaml")])
        raise DafuseError(f"no recipe {name}; dafuse list recipes shows those there are{hint}")
    recipe = read_yaml(path)
    if not isinstance(recipe, dict):
        raise DafuseError(f"{path} must hold keys and values")
    recipe.pop(NOTES, None)
    for key in NAMED:
        if isinstance(recipe.get(key), str):
            recipe[key] = {"name": recipe[key]}
        named = recipe.get(key, {})
        if not isinstance(named, dict) or not isinstance(named.get("name", ""), str):
            raise DafuseError(f"{path}: {key} must be a name, or a name with options")
    for key, value in recipe.items():
        inner = value.items() if key in NAMED else [("", value)]
        for option, one in inner:
            if isinstance(one, dict):
                told = f"{key}.{option}".rstrip(".")
                raise DafuseError(f"{path}: {told} must have a value, not keys of its own")
    return recipe


def expected(recipe: Path) -> dict[str, Any]:
    """What a recipe of the package should give, and who says so; empty where nobody does."""
    found: dict[str, Any] = read_yaml(recipe).get(NOTES, {})
    return found


def _kept(recipe: dict[str, Any], chosen: dict[str, str | None]) -> dict[str, Any]:
    """Return the recipe's options, but those of a method or data set where another is chosen."""
    return flatten(
        {
            key: value
            for key, value in recipe.items()
            if key not in NAMED or chosen[key] in (None, value.get("name"))
        }
    )


def _as_arguments(options: dict[str, Any]) -> list[str]:
    """Write options as if they were typed, so that they are checked the same way."""
    return [
        f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in options.items()
    ]


def _parser(method: str, data: str) -> ArgumentParser:
    from dafuse.methods.registry import find_method

    source, implied = resolve(data)
    parser = _OneLineErrors(
        prog="dafuse run",
        usage="dafuse run [RECIPE] [options]",
        description="Learn a stream of tasks with one method; started again, it goes on.",
    )
    parser.add_class_arguments(RunConfig, skip=set(NAMED))
    parser.add_argument("--method.name", default=method, help=SUPPRESS)
    parser.add_class_arguments(find_method(method), "method", skip={"trainer"})
    parser.add_argument("--data.name", default=source, help=SUPPRESS)
    parser.add_function_arguments(DATASETS[source], "data")
    for action in parser._actions:  # what jsonargparse adds for a group is here a name
        if action.option_strings in (["--method"], ["--data"]):
            kind = action.option_strings[0][2:]
            action.metavar = "NAME"
            action.help = f"see dafuse list {LISTED[kind]}; the options below belong to this one"
    parser.set_defaults({f"data.{key}": value for key, value in implied.items()})
    return parser


class _OneLineErrors(ArgumentParser):
    def error(self, message: str, ex: Exception | None = None) -> None:
        options = [option for action in self._actions for option in action.option_strings]
        message = in_words(" ".join(message.split()))
        raise mistyped(message, options, "dafuse run --method NAME --help")


def in_words(message: str) -> str:
    """What jsonargparse says of a value of the wrong type, without Python's names of types."""
    wrong = re.fullmatch(r'Parser key "(.+?)": Expected an? (.+?)\. Got value: (.*)', message)
    if wrong is None:
        return message
    key, expected, value = wrong.groups()
    choices = re.fullmatch(r"typing\.Literal\[(.+)\]", expected)
    if choices is not None:
        expected = "one of " + choices[1].replace("'", "")
    return f"{key} must be {TYPES.get(expected, expected)}, not {value}"


def _spell_out(argument: str) -> str:
    """--method daf means --method.name daf, and --record alone means --record=true."""
    if argument == "--record":
        return "--record=true"
    key, equals, value = argument.partition("=")
    return f"{key}.name{equals}{value}" if key in [f"--{n}" for n in NAMED] else argument


def _last_value(arguments: list[str], option: str) -> str | None:
    value = None
    for here, following in pairwise([*arguments, ""]):
        if here == option:
            value = following
        elif here.startswith(f"{option}="):
            value = here.partition("=")[2]
    return value


def _plain(parsed: Namespace) -> dict[str, Any]:
    """Namespaces as dicts, paths as strings: what JSON can hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, Namespace):
            return {k: plain(v) for k, v in vars(value).items()}
        return str(value) if isinstance(value, Path) else value

    return plain(parsed)
