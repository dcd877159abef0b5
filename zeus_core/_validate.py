"""Argument checks. Each returns the accepted value; each error names argument, value and what is accepted."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

from zeus_core.errors import UsageError

__all__ = [
    "checked_flag",
    "checked_instance",
    "checked_number",
    "checked_object",
    "checked_one_of",
    "checked_path",
    "checked_whole_number",
]

T = TypeVar("T")


def checked_whole_number(argument: str, value: SupportsIndex, minimum: int, wanted: str | None = None) -> int:
    """Return a whole number as an int; integers of numpy are accepted.

    Args:
        argument: Its name, for the error.
        value: Its value.
        minimum: The lowest accepted number.
        wanted: The accepted numbers in words, for the error; "a whole number, at least ..." if None.

    Raises:
        UsageError: It is not a whole number, or below the minimum.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if isinstance(value, bool) or number < minimum:
        raise _wrong(argument, value, wanted or f"a whole number, at least {minimum}")
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
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not minimum <= number <= maximum or math.isinf(number) or (is_open and number == minimum):
        raise _wrong(argument, value, wanted)
    return number


def checked_flag(argument: str, value: Any) -> bool:
    """Return True or False.

    Raises:
        UsageError: It is something else, such as 1 or "yes".
    """
    if not isinstance(value, bool):
        raise _wrong(argument, value, "true or false")
    return value


def checked_path(argument: str, value: str | os.PathLike[str], example: str = "plan.json") -> str:
    """Return the path of a file as text.

    Raises:
        UsageError: It is not a path, or empty.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise _wrong(argument, value, f"the path of a file, such as {example}")
    return path


def checked_one_of(argument: str, value: T, accepted: Collection[T]) -> T:
    """Return a value that is one of those accepted.

    Raises:
        UsageError: It is none of them.
    """
    if not any(value == known for known in accepted):  # `in` fails for unhashable values
        raise _wrong(argument, value, f"one of {', '.join(map(repr, accepted))}")
    return value


def checked_instance(argument: str, value: object, kind: type[T], example: str) -> T:
    """Return an object of a class.

    Raises:
        UsageError: It is no instance of the class.
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOUaeiou" else "a"
        raise _wrong(argument, value, f"{article} {kind.__name__}, such as {example}")
    return value


def checked_object(argument: str, value: T, method: str, wanted: str) -> T:
    """Return an object that has a method; a class that has it is refused, as it is not an object of that class.

    Raises:
        UsageError: It has no such method, or is a class.
    """
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise _wrong(argument, value, wanted)
    return value


def _wrong(argument: str, value: object, wanted: str) -> UsageError:
    return UsageError(f"{argument} is {value!r}; it must be {wanted}")
