"""The check of options: the same for the command line, recipes and Python, by the fields alone."""

from dataclasses import fields
from typing import Annotated, Any, get_origin, get_type_hints

import pytest

from dafuse.errors import DafuseError
from dafuse.methods.options import Range
from dafuse.methods.registry import METHODS, checked_options


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_allowed(name: str) -> None:
    assert checked_options(name, {}).keys() == {f.name for f in fields(METHODS[name])} - {"trainer"}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("daf", {"epochs": 0}, "method.epochs must be at least 1, not 0"),
        ("daf", {"epochs": "many"}, "method.epochs must be a whole number, not 'many'"),
        ("daf", {"epochs": True}, "method.epochs must be a whole number, not True"),
        ("daf", {"gamma": 2}, "method.gamma must be at least 0 and at most 1, not 2"),
        ("daf", {"lr": float("nan")}, "method.lr must be at least 0, not nan"),
        ("daf", {"rule": "best"}, "method.rule must be one of dynamic, static, last, mean, not"),
        ("daf", {"use_gradient": 1}, "method.use_gradient must be true or false, not 1"),
        ("klda", {"gamma": 0.0}, "method.gamma must be at least 1e-12 and at most 1, not 0.0"),
        ("klda", {"gamma": "auto"}, "method.gamma must be a number or null, not 'auto'"),
        ("l2p", {"pool_size": 4}, "method.prompts_per_image must be at least 1 and at most 4"),
        ("coda", {"prompt_length": 3}, "method.prompt_length must be even, not 3"),
        ("foster", {"boost_beta": 1.0}, "method.boost_beta must be at least 0 and at most 0.9999"),
    ],
)
def test_a_wrong_value_is_refused_before_a_method_is_made(
    name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(DafuseError, match=said):
        checked_options(name, options)


def test_large_ends_of_a_range_are_told_in_full() -> None:
    assert repr(Range(0, 2**32 - 1)) == "at least 0 and at most 4294967295"
    assert repr(Range(1e-12, 1e12)) == "at least 1e-12 and at most 1e+12"


def test_null_has_no_range() -> None:
    assert checked_options("klda", {"gamma": None})["gamma"] is None


def test_numbers_of_images_and_epochs_have_a_range() -> None:
    """Another one would need a reason: a training of no epochs learns nothing."""
    for method in METHODS.values():
        hints = get_type_hints(method, include_extras=True)
        for name in {"epochs", "first_epochs", "batch_size", "adapter_rank"} & hints.keys():
            assert get_origin(hints[name]) is Annotated, f"{method.name}: {name}"
            assert hints[name].__metadata__ == (Range(1),)
