"""The cost of a search for a whole run: its time, its steps, and whether it pays. Pure arithmetic.

A slowdown bound is for the run: the steps of the search count. With N steps of t seconds at the original setting, it
may last factor * N * t. The time that is not used up is left for the steps to come, so that their bound is looser after
steps quicker than the bound, and tighter after slower ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Of the time that a bound allows beyond the original, so much may go into settings that turn out too slow. The rest is
# left for the choice, which is worth more.
_SEARCH_SHARE = 0.5

# Steps that a run of unknown length is taken to last, at least. Then it is taken to last as long again as it has.
_MIN_HORIZON = 200


@dataclass(frozen=True)
class Prediction:
    """The expected effect of a setting, compared with the original one; the intervals hold the truth in 90 % of cases.

    Attributes:
        setting: The setting.
        saving_fraction: Energy of a step that it saves.
        saving_interval: The lower and the upper end.
        slowdown_factor: Duration of a step over that at the original setting.
        slowdown_interval: The lower and the upper end.
    """

    setting: int
    saving_fraction: float
    saving_interval: tuple[float, float]
    slowdown_factor: float
    slowdown_interval: tuple[float, float]


@dataclass(frozen=True)
class RunProgress:
    """How far a run has come.

    Attributes:
        steps: The steps so far.
        seconds: The time they took.
        original_seconds: Duration of one step at the original setting.
        max_steps: The steps of the whole run; None if nobody knows.
    """

    steps: int
    seconds: float
    original_seconds: float
    max_steps: int | None = None

    @property
    def horizon_steps(self) -> int:
        """The steps of the whole run, or as many as it is taken to have."""
        if self.max_steps is not None:
            return max(self.max_steps, self.steps)
        return self.steps + max(_MIN_HORIZON, self.steps)

    @property
    def steps_left(self) -> int:
        """The steps to come."""
        return self.horizon_steps - self.steps

    def factor_left(self, factor: float) -> float:
        """Return the slowdown at which the steps to come make the whole run last `factor` times the original.

        Below 1, not even the original setting keeps the bound any more. Infinite after the last step.
        """
        if self.steps_left == 0:
            return math.inf
        return (factor * self.horizon_steps - self.seconds / self.original_seconds) / self.steps_left

    def affordable_steps(self, factor: float, slowdown_factor: float) -> int:
        """Return how many steps to come a trial may last at a slowdown, before it must end.

        All of them, if the slowdown is within what is left. Otherwise it may use up half of the time that is left
        beyond the original.
        """
        if slowdown_factor <= max(self.factor_left(factor), 1.0):
            return self.steps_left
        spare_steps = (self.factor_left(factor) - 1) * self.steps_left * _SEARCH_SHARE
        return min(max(math.floor(spare_steps / (slowdown_factor - 1)), 0), self.steps_left)


@dataclass(frozen=True)
class SearchCost:
    """The cost of the rest of a search, and the saving it leads to.

    Attributes:
        steps: The highest number of steps until its end.
        max_steps: The steps of the whole run.
        time_fraction: How much longer the run gets by it at most, over its duration at the original setting.
        saving_fraction: The energy of the whole run expected to be saved, over that at the original setting. The
            steps of the search itself are taken to save nothing.
    """

    steps: int
    max_steps: int
    time_fraction: float
    saving_fraction: float

    @property
    def pays(self) -> bool:
        """Whether there are steps left to earn the search back, and energy to save in them."""
        return self.steps < self.max_steps and self.saving_fraction > 0

    def __str__(self) -> str:
        """Format the cost, to be shown in advance."""
        return f"about {self.steps:,} of {self.max_steps:,} steps, at most +{self.time_fraction:.1%} time"


def search_cost(
    run: RunProgress, prediction: Prediction, original_steps: int, trial_steps: int, factor: float | None = None
) -> SearchCost:
    """Return the highest cost of the rest of a search, and the saving it leads to.

    Args:
        run: How far the run has come.
        prediction: The setting that the search is expected to choose.
        original_steps: The steps that are still to be measured at the original setting.
        trial_steps: The highest number of steps of the trials to come, with those in which the device settles.
        factor: The slowdown bound; None without one. With one, a trial keeps to `RunProgress.affordable_steps`.
    """
    steps = min(original_steps + trial_steps, run.steps_left)
    excess = max(prediction.slowdown_interval[1] - 1, 0.0) * min(trial_steps, run.steps_left)
    if factor is not None:
        spare = max(run.factor_left(factor) - 1, 0.0) * run.steps_left
        excess = min(excess, spare * _SEARCH_SHARE) if prediction.slowdown_interval[1] > factor else min(excess, spare)
    steps_after = max(run.steps_left - steps, 0)
    return SearchCost(
        steps,
        run.horizon_steps,
        excess / run.horizon_steps if run.horizon_steps else 0.0,
        prediction.saving_fraction * steps_after / run.horizon_steps if run.horizon_steps else 0.0,
    )
