"""The golden section: fewer settings, if the cost falls and then rises."""

from __future__ import annotations

from collections.abc import Sequence

from zeus_core.search._search import Told, checked_settings, selected
from zeus_core.search.objectives import OptimumSelector, checked_selector
from zeus_core.search.trial import Trial

_GOLDEN = 0.618
_SHORT = 3  # an interval of so many steps has no two places that divide it well: all of it is tried


class GoldenSectionSearch:
    """A `Search` that narrows an interval of settings by comparing two inside it.

    It finds the best setting if the cost falls and then rises along the settings. It uses no prior knowledge, and takes
    each trial as exact.

    Args:
        settings: The settings. The highest one is the original.
        selector: The rule for the best setting.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(self, settings: Sequence[int], selector: OptimumSelector) -> None:
        self._settings = checked_settings(settings)
        self._selector = checked_selector(selector)
        self._told = Told()

    def ask(self) -> int | None:
        """Return the original setting first, then the next one inside the interval that is left."""
        first, last = 0, len(self._settings) - 1
        inside = _golden(first, last)
        for place in (0, *inside):
            if self._settings[place] not in self._told:
                return self._settings[place]
        while last - first > _SHORT:
            upper, lower = inside
            best = selected(self._selector, self._told.usable())
            if best is None:
                return None  # the rule fails; it will say why when it chooses
            if best >= self._settings[upper]:
                last, kept = lower, upper
            else:
                first, kept = upper, lower
            inside = _mirrored(first, last, kept)
            for place in inside if last - first > _SHORT else range(first, last + 1):
                if self._settings[place] not in self._told:
                    return self._settings[place]
        return None

    def tell(self, trial: Trial) -> None:
        """Take in a trial."""
        self._told.add(trial)

    @property
    def choice(self) -> None:
        """None: the rule for the best setting chooses among the trials."""
        return None


def _golden(first: int, last: int) -> tuple[int, ...]:
    """Return the two places that divide an interval, or all of a short one."""
    if last - first <= _SHORT:
        return tuple(range(first, last + 1))
    return round(last - _GOLDEN * (last - first)), round(first + _GOLDEN * (last - first))


def _mirrored(first: int, last: int, kept: int) -> tuple[int, ...]:
    """Return a place that was tried inside an interval, and the one as far from the other end."""
    mirrored = first + last - kept
    if mirrored == kept:
        mirrored += 1
    return min(kept, mirrored), max(kept, mirrored)
