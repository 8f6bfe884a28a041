"""`dafuse run [RECIPE] [--key value ...]`, whose options are also the keys of a recipe.

The options are those of the method and of the data set that are asked for, from their signatures,
so `--method.alpha` and `--data.root` are typed, documented and checked; an unknown key is an error.
What the command line says wins over what the recipe says.
"""

import inspect
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, make_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

from cyclopts import CoercionError, Parameter, Token
from cyclopts.config import Dict

from dafuse import cluster
from dafuse.commands.grid import combinations, run_grid, seeded, spelled
from dafuse.commands.options import Config, call, kinds_of
from dafuse.commands.plans import Placement
from dafuse.commands.recipes import NAMED, read_recipe
from dafuse.commands.terminal import show_results
from dafuse.data.registry import DATASETS, resolve
from dafuse.engine.config import RunConfig
from dafuse.errors import DafuseError
from dafuse.processes import rank_here
from dafuse.progress import Progress
from dafuse.report.runs import load_run

LISTED = {"method": "methods", "data": "data"}
USUAL = {"method": "daf", "data": "glyphs"}
NOTHING = ("null", "none")
TRUTHS = ("true", "false", "yes", "no", *NOTHING)
LISTS = ("increment", "order")  # options that may be a list


@dataclass(frozen=True, kw_only=True)
class Several(Placement):
    """More than one run: several seeds, or several values of options.

    Args:
        seeds: one number is how many class orders, the first of them --seed; with commas it is a
            list of seeds, such as 1993,7 (or 7, for this one alone)
        dry_run: list the runs, compute nothing
    """

    seeds: str | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class RunRequest:
    """One run that is asked for, and how it is made with others."""

    config: RunConfig
    several: Several


def main(arguments: Sequence[str]) -> None:
    """Learn the stream, and show the results; or those of a grid, one run after the other."""
    requests = [_request(words) for words in _each(arguments)]
    several = requests[0].several
    several.require_valid()
    seed_given = any(spelled(word.partition("=")[0]) == "--seed" for word in arguments)
    configs = seeded([one.config for one in requests], several.seeds, seed_given)
    if len(configs) > 1 or several.dry_run:
        run_grid(configs, several, several.dry_run)
        return
    (config,) = configs
    from dafuse.engine.display import shown_progress
    from dafuse.engine.run import run

    with shown_progress() as progress:
        if several.cluster is None:
            folder = run(config, progress)
        else:
            folder = _run_on_cluster(config, several, progress)
    if rank_here():  # another process shows them
        return
    show_results([load_run(folder)], page=folder / "report.html", inside=folder)


def _run_on_cluster(config: RunConfig, several: Several, progress: Progress) -> Path:
    """Share out the images of one run, and return its folder."""
    from dafuse.engine.run import resolved, run
    from dafuse.engine.run_shards import SharedImages, require_features_only

    config = resolved(config)
    require_features_only(config)  # before a cluster is started
    with cluster.joined(str(several.cluster), progress) as ray:
        return run(config, progress, shards=SharedImages(ray, config, several.share))


def parse(arguments: Sequence[str]) -> RunConfig:
    """Return the resolved configuration, or say in one line what is wrong with it."""
    return _request(arguments).config


def _each(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Yield the arguments of each run that is asked for."""
    from dafuse.methods.registry import find_method

    first, typed = _recipe_and_rest(cluster.spelled_out(arguments))
    shared = _splittable("", RunConfig)
    for words in combinations(typed, shared):
        named = _named([*first, *words])
        own = _splittable("method", find_method(named["method"]))
        own |= _splittable("data", DATASETS[resolve(named["data"])[0]])
        for chosen in combinations(words, own):
            yield [*first, *chosen]


def _recipe_and_rest(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a recipe's name, if one comes first, and what follows it."""
    first = [*arguments[:1]] if arguments and not arguments[0].startswith("-") else []
    return first, _spelled_out(arguments[len(first) :])


def _splittable(kind: str, of: Callable[..., Any]) -> dict[str, bool]:
    """Tell of each option whether commas separate values of it: not where it is free text."""
    hints = get_type_hints(of)
    return {
        "--" + f"{kind}.{name}".strip(".").replace("_", "-"): not {str, Path, dict} & set(kinds)
        for name in inspect.signature(of).parameters
        if (kinds := kinds_of(hints[name]))
    }


def _named(arguments: Sequence[str]) -> dict[str, str]:
    """Return the names of the method and of the data."""
    first, typed = _recipe_and_rest(arguments)
    recipe = read_recipe(first[0]) if first else {}
    return {key: _name_of(key, recipe, typed) for key in NAMED}


def _name_of(key: str, recipe: dict[str, Any], typed: Sequence[str]) -> str:
    told = _last_value(typed, f"--{key}"), recipe.get(key, {}).get("name"), USUAL[key]
    name = next(one for one in told if one is not None)
    if not name.strip():
        raise DafuseError(f"{key} needs a name; dafuse list {LISTED[key]} shows those there are")
    return str(name)


def _request(arguments: Sequence[str]) -> RunRequest:
    """Read the arguments of one run, and how it is made with others."""
    first, typed = _recipe_and_rest(cluster.spelled_out(arguments))
    recipe = read_recipe(first[0]) if first else {}
    chosen = {}
    for key in NAMED:
        chosen[key] = _name_of(key, recipe, typed)
        own = recipe.pop(key, {})
        named = own.pop("name", None)
        if _last_value(typed, f"--{key}") in (None, named):  # else its options are another one's
            recipe[key] = own
    lists = {key: recipe[key] for key in LISTS if isinstance(recipe.get(key), list)}
    recipe |= {key: json.dumps(value) for key, value in lists.items()}  # as it would be typed
    typed = [*(f"--{key}={value}" for key, value in chosen.items()), *typed]
    sources: list[Config] = [Dict(recipe, source="".join(first)), _checked]
    asked = call(_options_of(**chosen), f"dafuse run --method {chosen['method']}", typed, sources)
    assert isinstance(asked, RunRequest)
    return asked


def _options_of(method: str, data: str) -> Callable[..., RunRequest]:
    """Return a function whose options are those of a run, of this method and of this data set."""
    from dafuse.methods.registry import find_method

    source, implied = resolve(data)  # a path stands for its kind

    def run(
        recipe: str | None = None, /, *, shared: Any, method: Any, data: Any, several: Any
    ) -> RunRequest:
        if recipe is not None:
            hint = f"; the address of {cluster.OPTION} is HOST:PORT" if several.cluster else ""
            raise DafuseError(
                f"there is no place for {recipe}: one recipe comes first, then options{hint}"
            )
        config = RunConfig(
            method=_plain(method), data=_plain(data) | {"name": source}, **_plain(shared)
        )
        return RunRequest(config, several)

    run.__doc__ = """Learn a stream of tasks with one method; started again, it goes on.

    Several values with commas between them are a grid of runs: --seeds 5 --increment 5,10.
    See dafuse list recipes, methods, data. Options of another method or data set are shown with
    --method NAME --data NAME --help.

    Args:
        recipe: its name, or a file; options win over what it says
    """
    shared = _fields("", RunConfig, without=NAMED)
    flat = Parameter(name="*")
    run.__annotations__ |= {
        "shared": Annotated[shared, flat],
        "method": Annotated[_fields("method", find_method(method), without=["trainer"]), flat],
        "data": Annotated[_fields("data", DATASETS[source], **implied), flat],
        "several": Annotated[Several, flat],
    }
    run.__kwdefaults__ = {"shared": shared(), "several": Several()}
    return run


def _fields(kind: str, of: Callable[..., Any], without: Sequence[str] = (), **implied: Any) -> type:
    """Return a dataclass of what a function or a class takes, documented as it is.

    With a kind (method or data), `--KIND` takes its name, and its options are `--KIND.OPTION`.
    """
    hints, found = get_type_hints(of), list[tuple[Any, ...]]()
    if kind:
        told = f"see dafuse list {LISTED[kind]}; the options below are those of this one"
        name = Parameter(name=f"--{kind}", required=False, help=told)
        found.append(("name", Annotated[str, name]))
    for one in inspect.signature(of).parameters.values():
        if one.name not in without:
            spelled = "--" + f"{kind}.{one.name}".strip(".").replace("_", "-")
            hint: Any = Annotated[hints[one.name], Parameter(name=spelled)]
            if one.name in LISTS and not kind:
                hint = Annotated[hint, AS_JSON]
            default = implied.get(one.name, one.default)
            found.append((one.name, hint, *([] if default is one.empty else [default])))
    about = {"__doc__": of.__doc__, "__module__": __name__}
    return make_dataclass(kind or "shared", found, kw_only=True, namespace=about)


def _checked(_app: Any, _commands: Any, arguments: Any) -> None:
    """Read null as nothing where that is a value, and refuse what is no number, or no truth."""
    for argument in arguments:
        kinds = kinds_of(argument.hint)
        for place, token in enumerate(argument.tokens):
            value = token.value.lower()
            if NoneType in kinds and value in NOTHING:
                argument.tokens[place] = token.evolve(value="", implicit_value=None)
            elif bool in kinds and value and value not in TRUTHS:
                raise CoercionError(token=token, argument=argument, target_type=bool)
            elif float in kinds and not _is_finite(value):
                raise CoercionError(token=token, argument=argument, target_type=float)


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:  # nothing, or a word
        return True


def _number_list_or_word(hint: Any, tokens: Sequence[Token]) -> Any:
    """Read what was given last: a number, a list of numbers in brackets, or one of some words."""
    text = tokens[-1].value
    try:
        value = json.loads(text)
    except ValueError:  # a word
        value = text
    kinds = get_args(hint)
    words = [word for kind in kinds for word in get_args(kind)]
    listed = isinstance(value, list)
    numbers = value if listed else [value]
    if text in words or ((listed or int in kinds) and all(type(one) is int for one in numbers)):
        return value
    raise CoercionError(token=tokens[-1], target_type=hint)


AS_JSON = Parameter(converter=_number_list_or_word, n_tokens=1, json_list=False, metavar="VALUE")


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """Return `--method.name daf` as `--method daf`, and `--compiled false` as `--compiled=false`.

    An option that may stand alone would not take the word that follows.
    """
    words: list[str] = []
    for word in arguments:
        for key in NAMED:
            if word.partition("=")[0] == f"--{key}.name":
                word = word.replace(".name", "", 1)
        last = words[-1] if words else ""
        if word.lower() in TRUTHS and last.startswith("--") and "=" not in last:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _last_value(arguments: Sequence[str], option: str) -> str | None:
    value = None
    for here, following in pairwise([*arguments, ""]):
        name, equals, given = here.partition("=")
        if name == option:
            value = given if equals else following
    return value


def _plain(options: Any) -> dict[str, Any]:
    """Return what JSON can hold: paths as strings."""
    return {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
