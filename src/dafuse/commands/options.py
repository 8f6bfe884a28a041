"""Options of commands, declared in a function's signature, which cyclopts reads.

The docstring says what the command and each option are for. A mistake is one line, with what was
likely meant. `--adapter-rank` may be spelled `--adapter_rank`; of two values the last one counts.
"""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import cyclopts
from cyclopts import CoercionError, CycloptsError, Parameter, Token

from dafuse import cluster
from dafuse.errors import DafuseError, did_you_mean

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

Config = Callable[[Any, Any, Any], None]
Model = Annotated[str, Parameter(help="the model's folder")]
Asked = Annotated[str, Parameter(help="the model's folder, or an .onnx file of dafuse export")]
Source = Annotated[
    str,
    Parameter(
        help="a folder with a folder of images for each class; or a .csv or .parquet with the "
        "columns path and label; or .tar files of images and labels (WebDataset): one, a folder or "
        "a pattern; each of these also at https:// or s3:// (docs/cluster.md); or an .npz of "
        "train_images and train_labels (perhaps also test_images, test_labels and, where labels "
        "are numbers, class_names)"
    ),
]
Rest = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]  # for another function
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"],
    Parameter(help="where it runs; auto takes a GPU if there is one that can be used"),
]
Threads = Annotated[int | None, Parameter(help="how many; one for each processor if left out")]
Cluster = Annotated[
    str | None,
    Parameter(
        help="spread the work over a Ray cluster: auto joins the one that runs here or starts one "
        "of this machine alone; else HOST:PORT",
        metavar="[ADDRESS]",
    ),
]
WEIGHTS = "a local file with the backbone's weights: .safetensors, or .onnx of an exported backbone"
Weights = Annotated[str | None, Parameter(help=WEIGHTS)]
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
MOST_SHOWN = 200  # characters of a wrong value


def call(
    command: Callable[..., Any], name: str, arguments: Sequence[str], config: Sequence[Config] = ()
) -> Any:
    """Call a function with the arguments that a command line has for it, or show its help.

    Args:
        command: a function whose signature and docstring declare the options
        name: what is typed to call it, as messages and help show it
        arguments: what is typed after that
        config: further sources of values, as cyclopts takes them; what is typed wins
    """
    arguments = cluster.spelled_out(arguments)
    app = cyclopts.App(
        name=name,
        default_command=command,
        default_parameter=Parameter(allow_repeating=True, negative_iterable=()),
        config=[*config, _whole],
        version_flags=(),
        help=_described(command),
        help_format="plaintext",
        help_formatter=_show_help,
        group_commands=cyclopts.Group("Commands", show=False),
    )
    app.usage = _usage(name, app.assemble_argument_collection())
    try:
        chosen, given, *_ = app.parse_args(
            arguments, exit_on_error=False, print_error=False, verbose=False
        )
    except CycloptsError as error:
        raise _in_words(error, name, arguments) from None
    except (RecursionError, ValueError):  # of the JSON of a list
        raise DafuseError(f"a list is too deep, or a number too long; see {name} --help") from None
    found = chosen(*given.args, **given.kwargs)
    if chosen is not command:  # which has shown the help
        sys.exit()
    return found


def _described(command: Callable[..., Any]) -> str:
    """Return what a docstring says before its arguments, each paragraph in one line."""
    told, _, _ = inspect.cleandoc(command.__doc__ or "").partition("\n\nArgs:")
    return re.sub("(?<!\n)\n(?!\n)", " ", told)


def _usage(name: str, arguments: Any) -> str:
    """Return how a command is called, with what may be left out in brackets."""
    words = [name]
    options = [one for one in arguments if one.index is None and one.show]
    words += [f"{one.name} VALUE" for one in options if one.required]
    words += ["[OPTIONS]"] if any(not one.required for one in options) else []
    for one in arguments:
        if one.index is not None and one.show:
            label = one.name + ("..." if one.is_var_positional() else "")
            words.append(label if one.required else f"[{label}]")
    return " ".join(words)


def _whole(_app: Any, _commands: Any, arguments: Any) -> None:
    """Refuse what cyclopts would round: a number with a point for a whole number."""
    for argument in arguments:
        kinds = kinds_of(argument.hint)
        if int in kinds and not {float, str} & set(kinds):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(token=token, argument=argument, target_type=int)


def kinds_of(hint: Any) -> list[Any]:
    """Return the plain types that a type is made of."""
    inner = () if get_origin(hint) is Literal else get_args(hint)
    return [kind for one in inner for kind in kinds_of(one)] or [hint]


def _in_words(error: CycloptsError, name: str, arguments: Sequence[str]) -> DafuseError:
    """Return what is wrong with a command line, or with a recipe that stands for a part of it."""
    told, meant = " ".join(str(error).split()), ""
    tokens = error.argument.tokens if error.argument is not None else []
    token = getattr(error, "token", None) or (tokens[0] if tokens else None)
    source = token.source if token is not None and token.source != "cli" else ""
    if isinstance(error, cyclopts.UnknownOptionError):
        options = [one for one in error.argument_collection if one.index is None]
        known = [name for one in options for name in one.names]
        named = any(one.required for one in error.argument_collection if one.index is not None)
        if source:
            key, keys = _key(error.token), [name.removeprefix("--") for name in known]
            meant = did_you_mean(key, keys)
            return DafuseError(f"the recipe {source} has {key!r}, which is no option{meant}")
        option = error.token.keyword or error.token.value.partition("=")[0]
        told, meant = f"there is no option {option}", did_you_mean(option, known)
        if named and re.match("-[^-]", option) and "--" not in arguments:
            meant += f"; a name that begins with a dash comes after two of them: -- {option}"
    elif isinstance(error, cyclopts.UnusedCliTokensError):
        told = f"there is no place for {' '.join(error.unused_tokens or [])}"
    elif error.argument is not None and isinstance(error, cyclopts.MissingArgumentError):
        given = error.keyword or tokens
        told = f"{error.argument.name} " + ("needs a value" if given else "is missing")
        if error.argument.index is not None and arguments and arguments[0].startswith("--"):
            told += ": it comes before the options"
    elif error.argument is not None and token and isinstance(error, CoercionError):
        option = f"the recipe {source}: {_key(token)}" if source else error.argument.name
        value = "null" if token.implicit_value is None else token.value
        wanted = _wanted(error.argument.hint)
        told = f"{option} must be {wanted}, not {value[:MOST_SHOWN]}"
    return DafuseError(f"{told}; see {name} --help{meant}")


def _key(token: Token) -> str:
    """Return the key of a recipe as it is written there: `method.alpha` for `[method][alpha]`."""
    return (token.keyword or "")[1:-1].replace("][", ".")


def _wanted(hint: Any) -> str:
    """Return a type in words."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_wanted(one) for one in get_args(hint) if one is not NoneType)
    if get_origin(hint) is Sequence:  # whose values are given one by one
        return _wanted(get_args(hint)[0])
    if get_origin(hint) is list:
        return "a list like [1, 2]"
    return KINDS.get(hint, str(hint))


def _show_help(console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
    """Print the options in two columns: how each is spelled, and what it is for."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for entry in panel.entries:
        if entry.default == "False":
            entry = entry.copy(default=None, negative_names=())
        told = [str(entry.description.primary_renderable)]
        told += [f"({', '.join(entry.choices)})"] if entry.choices else []
        told += [f"[{entry.default}]"] if entry.default not in (None, "()") else []
        names = "\n".join(entry.display_labels_with_metavar)
        table.add_row(Text(names), Text(" ".join(" ".join(told).split())))
    console.print(f"{panel.title}:")
    console.print(table)
    console.print()
