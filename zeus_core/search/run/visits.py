"""The visits of the settings in a run, and steps at them compared with those at the original around them. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zeus_core.kinds import Kind
from zeus_core.search.comparison import Comparison, percentage
from zeus_core.search.trial import Trial, Visit, pooled_trial

if TYPE_CHECKING:
    from zeus_core.search.run._visited_settings import VisitedSettings

# No lower limit or clock makes steps quicker, nor slower than its clocks. Where an interval is beyond that by more than
# this, the work or the machine has changed. Boards that throttle at the original setting alone may differ by as much.
_FASTER, _SLOWER = 0.99, 1.02

_CHANGED = "so the work or the machine has changed meanwhile"
_OTHER_PART = (
    "steps at the original setting were measured before this part of the run alone, when the work or the load of the "
    "machine may have been another"
)


class Visits:
    """The visits of a run, in order.

    Args:
        original: The original setting.
        kind: The kind of setting.
        earlier: The blocks of earlier parts of the run, each with all steps of the run until its end.
    """

    def __init__(self, original: int, kind: Kind, earlier: Iterable[tuple[Trial, int]] = ()) -> None:
        self._original, self._kind = original, kind
        self._visits = [Visit(trial, run_steps, is_own=False) for trial, run_steps in earlier]
        self._fits: dict[tuple[int, bool], VisitedSettings | None] = {}  # by the number of visits, and `is_own`

    def add(self, trial: Trial, run_steps: int) -> None:
        """Add a visit of this part, which ends after so many steps of the run."""
        self._visits.append(Visit(trial, run_steps))

    def continue_after(self, other: Visits, steps: int) -> None:
        """Put the visits of an earlier training of this process, which had so many steps, before those of this one."""
        earlier = [replace(visit, run_steps=visit.run_steps - steps) for visit in other._visits]
        self._visits = earlier + self._visits

    def take_over(self, other: Visits) -> None:
        """Add the visits of another search of this run at its original setting."""
        self._visits += [
            replace(visit, trial=replace(visit.trial, setting=self._original))
            for visit in other._visits
            if visit.trial.setting == other._original
        ]

    def comparison(self, after: Trial, steps: Mapping[int, int], known: Trial | None) -> Comparison | None:
        """Compare steps at the choices with steps at the original setting, of this process alone.

        Args:
            after: The steps at the choices.
            steps: How many of them are at each.
            known: Steps at the original setting, of any part of any run; None without any.

        Returns:
            The comparison; None if no step at the original setting is known.
        """
        own = [visit.trial for visit in self._visits if visit.is_own and visit.trial.setting == self._original]
        if not own:
            return None if known is None else Comparison(known, after, doubt=_OTHER_PART)
        plain, visited = Comparison(pooled_trial(own), after), self._visited(is_own=True)
        if visited is None or not math.isfinite(plain.slowdown_uncertainty):
            return plain
        (time, time_off), (power, power_off) = visited.slowdown(steps), visited.power(steps)
        saving_off = math.hypot(time_off * power, time * power_off)
        longest = self._longest(own, steps)
        doubts = [_doubt(plain.slowdown_factor, plain.slowdown_uncertainty, longest), _doubt(time, time_off, longest)]
        if not self._kind.lowers_sm_clock:
            doubts = [None, None]
        found = replace(
            plain,
            saving=(1 - time * power, saving_off) if math.isfinite(plain.saving_uncertainty) else None,
            slowdown=(time, time_off),
            has_drifted=visited.has_drifted or any(doubts),
            doubt=doubts[1],
        )
        if not any(doubts) or found.is_certain:
            return found
        # The visits do not show when the change was: anything that is possible may be true.
        off = max(abs(end - time) for end in (1.0, longest if math.isfinite(longest) else time))
        return replace(
            found,
            saving=found.saving and (found.saving[0], max(saving_off, off * power)),
            slowdown=(time, max(time_off, off)),
            doubt=doubts[1] or doubts[0],
        )

    def _longest(self, at_original: Sequence[Trial], choices: Collection[int]) -> float:
        """Return the longest slowdown that the clocks explain; infinite if they are not known."""
        others = [visit.trial for visit in self._visits if visit.is_own and visit.trial.setting in choices]
        highest = max((trial.highest_clock_mhz or 0.0 for trial in at_original), default=0.0)
        lowest = min((trial.lowest_clock_mhz or 0.0 for trial in others), default=0.0)
        return max(highest / lowest, 1.0) if highest and lowest else math.inf

    def run_slowdown(self, run_steps: int, setting: int) -> tuple[float, float] | None:
        """Return the slowdown of the whole run by its settings, and how far it can be off.

        None if it is unknown, and if all steps were at the original setting.

        With n(s) of n steps at a setting s, which makes them f(s) times as long, it is the sum of n(s) / n * f(s).

        Args:
            run_steps: All steps of the run so far.
            setting: The setting of those after the latest block.
        """
        steps, counted = Counter[int](), 0
        for visit in self._visits:
            steps[visit.trial.setting] += max(visit.run_steps - counted, 0)
            counted = max(visit.run_steps, counted)
        steps[setting] += max(run_steps - counted, 0)
        visited = {visit.trial.setting for visit in self._visits}
        changed = {one for one, count in steps.items() if count} - {self._original}
        fit = self._visited(is_own=False)
        if fit is None or not changed or not {self._original, *changed} <= visited:
            return None
        return fit.slowdown(steps)

    def _visited(self, *, is_own: bool) -> VisitedSettings | None:
        """Return the settings as this part of the run, or all of it, shows them; None for too few visits."""
        key = len(self._visits), is_own
        if key not in self._fits:
            from zeus_core.search.run._visited_settings import VisitedSettings  # needs numpy

            usable = [
                visit
                for visit in self._visits
                if visit.trial.joules_per_step > 0 and visit.trial.setting <= self._original
            ]
            fit = (
                VisitedSettings(usable, self._original, is_own=is_own, is_ordered=self._kind.is_ordered)
                if len(usable) > 1
                else None
            )
            self._fits = {**{known: one for known, one in self._fits.items() if known[0] == key[0]}, key: fit}
        return self._fits[key]


def _doubt(factor: float, uncertainty: float, longest: float) -> str | None:
    """Return why a slowdown cannot be the effect of lower settings; None if it can."""
    text = percentage(factor - 1, uncertainty, sign="+")
    if factor + uncertainty < _FASTER:
        return f"{text} time at a lower setting, which cannot make steps quicker, {_CHANGED}"
    if factor - uncertainty > _SLOWER * longest:
        return f"{text} time, where the lower clocks explain {longest - 1:+.1%} at most, {_CHANGED}"
    return None
