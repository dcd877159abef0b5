"""Whether a choice does what its rule demands, by the steps that were measured at it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zeus_core.search.comparison import Comparison
from zeus_core.search.objectives import (
    Energy,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    ZeusCost,
    longest_factor,
)

_ROUNDING = 1e-9  # a slowdown is a quotient of sums: closer than this to its bound, it is there


@dataclass(frozen=True)
class Verdict:
    """A judgement on a choice.

    Attributes:
        holds: Whether the choice does what its rule demands; None if that is not known.
        text: The failure, or the fact that is not known, to continue a sentence; may be empty.
    """

    holds: bool | None
    text: str


def verdict_on(
    selector: OptimumSelector, comparison: Comparison | None, run_slowdown: tuple[float, float] | None = None
) -> Verdict:
    """Judge a choice: by the intervals of its time and energy, which hold the truth in 95 % of cases.

    Args:
        selector: The rule that chose it.
        comparison: Steps at the original setting and at the choice; None if they were not measured, or are one.
        run_slowdown: The slowdown of the whole run and how far it can be off, if a bound is for the run; None if it is
            for each step.
    """
    steps = None if comparison is None else (comparison.slowdown_factor, comparison.slowdown_uncertainty)
    factor = selector.bound_factor
    if factor is not None:
        holds = _is_within(run_slowdown or steps, factor)
        if holds is not False and comparison is not None and comparison.is_certain and comparison.saving_fraction < 0:
            return Verdict(False, ", but took more energy than the original")
        if holds and _is_within(steps, factor) is False:  # other steps of the run were quicker
            return Verdict(True, ", whose bound the run kept")
        return _verdict(holds, "its bound was not kept", "its bound was kept")
    longest = longest_factor(selector)
    if longest is not None:
        holds = _is_within(steps, longest)
        return _verdict(holds, "its steps were slower than the original", "its steps were as fast as the original")
    objective = selector.objective
    if comparison is None or objective is None:
        return Verdict(None, "")
    return _verdict(_costs_less(objective, comparison), "cost more than the original", "it cost less than the original")


def is_worth_keeping(selector: OptimumSelector, comparison: Comparison) -> bool:
    """Whether a choice certainly saves energy, by the whole interval of 95 %. True of rules for something else.

    Steps at the original setting of another process count here, although no saving is claimed by them.
    """
    if longest_factor(selector) is None and not isinstance(selector, Energy | ZeusCost):
        return True
    return replace(comparison, doubt=None).is_certain and comparison.saving_fraction > 0


def _verdict(holds: bool | None, failure: str, demand: str) -> Verdict:
    if holds is None:
        return Verdict(None, f", and whether {demand} is not known")
    return Verdict(holds, "" if holds else f", but {failure}")


def _is_within(slowdown: tuple[float, float] | None, factor: float) -> bool | None:
    if slowdown is None:
        return None
    value, uncertainty = slowdown
    longest = factor * (1 + _ROUNDING)
    return True if value + uncertainty <= longest else False if value - uncertainty > longest else None


def _costs_less(selector: Objective, comparison: Comparison) -> bool | None:
    """Return whether the cost is at most the original one, if it grows with both energy and time."""
    before = PowerLimitMeasurement.from_trial(comparison.before, 1)
    energy, energy_off = 1 - comparison.saving_fraction, comparison.saving_uncertainty
    time, time_off = comparison.slowdown_factor, comparison.slowdown_uncertainty

    def after(sign: int) -> PowerLimitMeasurement:
        joules = before.energy * max(energy + sign * energy_off, 0.0)
        return PowerLimitMeasurement(comparison.after.setting, joules, before.time * max(time + sign * time_off, 0.0))

    try:
        original, lowest, highest = (selector.cost(one, before) for one in (before, after(-1), after(1)))
    except Exception:  # a cost of the user's may raise anything
        return None
    return True if highest <= original else False if lowest > original else None
