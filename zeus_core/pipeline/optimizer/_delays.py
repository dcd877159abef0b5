"""Slow iterations: is the plan at fault, or the machine? Pure.

Rules:

- An iteration is too slow if it takes longer than the user allows, and longer than a pipeline waits for regardless.
- After a slow one, iterations at the original clocks tell the reason. If they are as slow, the machine is slower: the
  plan is made again for it.
- A plan that has been fast enough before is given a few more chances: the delay may be transient.
- Otherwise the plan is at fault. The next one has less time; after several of these there is no further plan.
- A plan that has been fast enough for long clears the record of earlier ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from statistics import median

__all__ = ["DelayWatch", "Verdict"]

# Plans that may be too slow before there is no further one. Each costs `check_steps` slow iterations; a plan is scaled
# by its measured excess, so that the second one is close, and a third leaves room for noise.
_MAX_SLOW_PLANS = 3

# Delays in a row that a plan is forgiven if it was fast enough before. More of them keep a plan that has become too
# slow for longer; fewer replace a good one for two stalls of the machine in a row.
_MAX_FORGIVEN_DELAYS = 4

# Comparisons a plan must pass to clear the record of earlier slow plans: enough to tell a good plan from a lucky one.
_CLEARING_WINDOWS = 5

# Comparisons whose median is taken as the usual time of an iteration: a stall in two of them does not move it.
_RECENT_WINDOWS = 5


class Verdict(Enum):
    """The reason of a delay."""

    MACHINE = "the machine is slower, the plan is not at fault"
    TRANSIENT = "the plan was fast enough before"
    PLAN = "the plan is too slow"
    EVERY_PLAN = "no plan is fast enough"


class DelayWatch:
    """Detects slow iterations, and judges them.

    Args:
        slowdown_factor: The longest allowed iteration, as a multiple of that at the original clocks.
        tolerance_fraction: Excess over the allowed time that is no delay yet.
    """

    def __init__(self, slowdown_factor: float, tolerance_fraction: float) -> None:
        self._slowdown_factor = slowdown_factor
        self._tolerance_factor = 1 + tolerance_fraction
        self._slow_plans = 0
        self._forgiven_delays_left = 0
        self._good_windows = 0
        self._usual_seconds: deque[float] = deque(maxlen=_RECENT_WINDOWS)
        self.time_budget_factor = 1.0
        """The longest iteration to plan for, as a multiple of the allowed time."""
        self.delayed_seconds = 0.0
        """The time of the latest iteration that was too slow."""

    def begin_planning(self) -> None:
        """Note that new plans are made: they have not been fast enough yet."""
        self._forgiven_delays_left = 0

    def begin_replaying(self) -> None:
        """Note that plans are followed from now on."""
        self._good_windows = 0
        self.change_plans()

    def change_plans(self) -> None:
        """Note that other plans are followed: iterations take another time."""
        self._usual_seconds.clear()

    def is_too_slow(
        self, measured_seconds: float, baseline_seconds: float, waiting_seconds: Sequence[float] = ()
    ) -> bool:
        """Compare the time of an iteration with what is allowed.

        Args:
            measured_seconds: The iteration.
            baseline_seconds: An iteration at the original clocks.
            waiting_seconds: Predictions for the pipelines that wait for something slower regardless.
        """
        reference_seconds = baseline_seconds
        if self._usual_seconds:
            # No plan is faster than the original clocks: a baseline slower than a plan was slowed by something else.
            reference_seconds = min(reference_seconds, median(self._usual_seconds))
        longest_seconds = max([self._slowdown_factor * reference_seconds, *waiting_seconds])
        if measured_seconds > self._tolerance_factor * longest_seconds:
            self.delayed_seconds = measured_seconds
            return True
        self._good_windows += 1
        self._usual_seconds.append(measured_seconds)
        return False

    def note_delay(self, measured_seconds: float) -> None:
        """Note an iteration that is to be judged, for another reason than its time."""
        self.delayed_seconds = measured_seconds

    def judge(self, baseline_seconds: float) -> Verdict:
        """Judge the latest delay.

        Args:
            baseline_seconds: An iteration at the original clocks, measured after the delay.
        """
        if self._good_windows > 0:
            self._forgiven_delays_left = _MAX_FORGIVEN_DELAYS
        if self._good_windows >= _CLEARING_WINDOWS:
            self._slow_plans, self.time_budget_factor = 0, 1.0
        allowed_seconds = self._slowdown_factor * baseline_seconds
        if self.delayed_seconds <= self._tolerance_factor * allowed_seconds:
            return Verdict.MACHINE
        if self._forgiven_delays_left > 0:
            self._forgiven_delays_left -= 1
            return Verdict.TRANSIENT
        self._slow_plans += 1
        self.time_budget_factor *= allowed_seconds / self.delayed_seconds
        return Verdict.EVERY_PLAN if self._slow_plans == _MAX_SLOW_PLANS else Verdict.PLAN
