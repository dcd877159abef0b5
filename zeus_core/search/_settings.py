"""The settings of a search, checked."""

from collections.abc import Sequence
from functools import partial

from zeus_core._validate import checked_list, checked_whole_number

__all__ = ["checked_settings"]


def checked_settings(settings: Sequence[int]) -> tuple[int, ...]:
    """Return each setting once, the highest first.

    Raises:
        UsageError: They are no list of positive whole numbers, or empty.
    """
    wanted = "a list of settings, such as [300, 250]"
    numbers = checked_list("settings", settings, partial(checked_whole_number, minimum=1), wanted, minimum=1)
    return tuple(sorted(set(numbers), reverse=True))
