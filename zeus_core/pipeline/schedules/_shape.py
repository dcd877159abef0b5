"""Checks of the numbers a schedule is made from."""

from __future__ import annotations

from zeus_core.errors import UsageError

__all__ = ["check_count"]


def check_count(name: str, value: object) -> None:
    """Raise `UsageError` unless `value` is a whole number, at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is {value!r}; it must be a whole number, at least 1, such as 8")
