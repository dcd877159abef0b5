"""Argument checks. Each returns the accepted value; each error names argument, value and what is accepted."""

from __future__ import annotations

import math
import operator
import os
import re
import reprlib
import sys
from collections.abc import Collection
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

from zeus_core.errors import UsageError

T = TypeVar("T")

_PERCENTAGE = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?%", re.ASCII)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200  # a path, or the name and some fields of an object
_SHORT.maxlist = _SHORT.maxtuple = 10


def checked_whole_number(
    argument: str, value: SupportsIndex, minimum: int, wanted: str | None = None, maximum: int = sys.maxsize
) -> int:
    """Return a whole number as an int; integers of numpy are accepted.

    Args:
        argument: Its name, for the error.
        value: Its value.
        minimum: The lowest accepted number.
        wanted: The accepted numbers in words, for the error; "a whole number, at least ..." if None.
        maximum: The highest accepted number; by default one that calculations with floats can still hold.

    Raises:
        UsageError: It is not a whole number, or out of its range.
    """
    try:
        number = operator.index(value)
    except Exception:  # also that of an object whose own methods fail
        number = minimum - 1
    if isinstance(value, bool) or not minimum <= number <= maximum:
        raise wrong_argument(argument, value, wanted or f"a whole number, at least {minimum}")
    return number


def checked_number(
    argument: str, value: SupportsFloat, minimum: float, maximum: float, wanted: str, *, is_open: bool = False
) -> float:
    """Return a finite number within its range as a float; numbers of numpy are accepted.

    Args:
        argument: Its name, for the error.
        value: Its value.
        minimum: The lowest accepted number.
        maximum: The highest accepted number; may be infinite.
        wanted: The accepted numbers in words, for the error.
        is_open: Whether the minimum itself is refused.

    Raises:
        UsageError: It is not a finite number, or out of its range.
    """
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except Exception:  # also that of an object whose own methods fail
        number = math.nan
    if not minimum <= number <= maximum or math.isinf(number) or (is_open and number == minimum):
        raise wrong_argument(argument, value, wanted)
    return number


def checked_flag(argument: str, value: Any) -> bool:
    """Return True or False.

    Raises:
        UsageError: It is something else, such as 1 or "yes".
    """
    if not isinstance(value, bool):
        raise wrong_argument(argument, value, "true or false")
    return value


def checked_path(argument: str, value: str | os.PathLike[str], example: str = "plan.json", kind: str = "file") -> str:
    """Return the path of a file, or of a folder, as text.

    Raises:
        UsageError: It is not a path, or empty, or no file can have that name.
    """
    try:
        path = os.fspath(value)
        can_exist = b"\0" not in os.fsencode(path)
    except Exception:  # no file can have that name, or the object's own methods fail
        can_exist = False
    if not can_exist or not isinstance(path, str) or not path:
        raise wrong_argument(argument, value, f"the path of a {kind}, such as {example}")
    return path


def checked_one_of(argument: str, value: T, accepted: Collection[T]) -> T:
    """Return a value that is one of those accepted.

    Raises:
        UsageError: It is none of them.
    """
    # `in` fails for unhashable values, and a comparison with an array has no truth.
    if not any(isinstance(value, type(known)) and value == known for known in accepted):
        raise wrong_argument(argument, value, f"one of {', '.join(map(repr, accepted))}")
    return value


def checked_object(argument: str, value: T, method: str, wanted: str) -> T:
    """Return an object that has a method; a class that has it is refused, as it is not an object of that class.

    Raises:
        UsageError: It has no such method, or is a class.
    """
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise wrong_argument(argument, value, wanted)
    return value


def checked_slowdown(argument: str, text: str) -> float:
    """Return the factor of time of a slowdown in percent, as people write it: 1.1 for "10%".

    Raises:
        UsageError: It is not a percentage from 0 to 100.
    """
    match = _PERCENTAGE.fullmatch(text)
    if match is None or float(match[1]) > 100:
        raise wrong_argument(argument, text, "a slowdown from 0% to 100%, such as 10%")
    return 1 + float(match[1]) / 100


def shown(value: object) -> str:
    """Return a short text of any value for an error, also of one that is large, nested, or fails to print itself."""
    try:
        return _SHORT.repr(value)
    except Exception:
        return f"an object of the class {type(value).__name__}"


def wrong_argument(argument: str, value: object, wanted: str) -> UsageError:
    """Return the error of an argument whose value is not accepted."""
    return UsageError(f"{argument} is {shown(value)}; it must be {wanted}")
