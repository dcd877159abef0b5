"""Argument checks: the accepted value comes back as a plain one, and errors name argument, value and range."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zeus_core import validate as _validate
from zeus_core.errors import UsageError


@pytest.mark.parametrize(
    ("check", "value", "arguments", "accepted"),
    [
        ("checked_whole_number", np.int32(3), (1,), 3),
        ("checked_number", np.float32(0.5), (0.0, 1.0, "0 to 1"), 0.5),
        ("checked_number", 1, (0.0, math.inf, "at least 0"), 1.0),
        ("checked_flag", True, (), True),
        ("checked_path", Path("a/b.json"), (), str(Path("a/b.json"))),
        ("checked_one_of", "torch", (["torch", "jax"],), "torch"),
        ("checked_object", [1], ("append", "a list"), [1]),
    ],
)
def test_an_accepted_value_comes_back_plain(check: str, value: Any, arguments: tuple[Any, ...], accepted: Any) -> None:
    checked = getattr(_validate, check)("argument", value, *arguments)
    assert checked == accepted
    assert type(checked) is type(accepted)


@pytest.mark.parametrize(
    ("check", "value", "arguments", "wanted"),
    [
        *(("checked_whole_number", value, (1,), "a whole number, at least 1") for value in (0, 1.0, True, "1", None)),
        *(("checked_number", value, (0, 1, "0 to 1"), "0 to 1") for value in (-0.1, math.nan, True, "1", None)),
        ("checked_number", math.inf, (0, math.inf, "at least 0"), "at least 0"),
        ("checked_flag", 1, (), "true or false"),
        *(("checked_path", value, (), "the path of a file, such as plan.json") for value in ("", 3, None, b"x", "\0")),
        ("checked_one_of", "caffe", (["torch", "jax"],), "one of 'torch', 'jax'"),
        *(("checked_object", value, ("append", "a list, such as []"), "a list, such as []") for value in (list, 3)),
    ],
)
def test_an_error_names_argument_value_and_range(
    check: str, value: Any, arguments: tuple[Any, ...], wanted: str
) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(_validate, check)("argument", value, *arguments)
    assert str(caught.value) == f"argument is {value!r}; it must be {wanted}"


def test_an_open_range_leaves_out_its_minimum() -> None:
    with pytest.raises(UsageError):
        _validate.checked_number("argument", 0.0, 0.0, 1.0, "above 0", is_open=True)


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError

    __float__ = __index__ = __fspath__ = __iter__ = __bool__ = __repr__


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("value", [Silent(), 10**5000, deep(), "x" * 10**6, [0] * 10**6, np.zeros(10**5)], ids=type)
@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        ("checked_whole_number", (10**6000, "a whole number")),
        ("checked_number", (0, 1, "0 to 1")),
        ("checked_flag", ()),
        ("checked_one_of", (["torch", "jax"],)),
        ("checked_object", ("wait", "a time source")),
    ],
)
def test_any_value_can_be_named_in_an_error(check: str, value: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"argument.* is ") as caught:
        getattr(_validate, check)("argument", value, *arguments)
    assert len(str(caught.value)) < 500
