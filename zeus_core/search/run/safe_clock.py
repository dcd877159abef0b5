"""A search of SM clocks that uses what the clocks of the GPUs show, without a measurement of time.

Safe: at a clock f, a step takes at most f_e / f times as long as at the mean clock f_e that the GPU runs at by itself.
The part that computes takes so much longer, and the rest does not. So the highest f_e of the GPUs over the factor of a
slowdown bound keeps it, however noisy the steps are, and however short the run.

Level: GPUs of one model differ, and those that do the same work wait for the one with the lowest f_e. At that clock all
are as fast as this one, and the others no longer spend power on being early. That every GPU does the same is likely,
and not certain: so it is tried once, and kept if it is not slower than it should be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from zeus_core.search.run.run_plan import Prediction, SearchCost
from zeus_core.search.run.run_search import Block, RunSearch
from zeus_core.search.trial import Trial

# If the GPUs do not do the same, steps get longer by up to the difference of their clocks. Times whose standard error
# is this small a share of it tell that apart: also where a third of the work is bound by the clock.
_MAX_STDERR_SHARE = 0.1
_MIN_DIFFERENCE = 0.01  # of the clocks of two GPUs; less is not worth a trial
_STANDARD_ERRORS = 2.0
_MIN_LEVEL_STEPS = 20  # of its trial: with fewer, one stray step decides

_CLOCKS = ("lowest_clock_mhz", "highest_clock_mhz")


class SafeClock(RunSearch):
    """A `RunSearch` that never settles for a higher clock than one that is known to keep the bound, if that saves.

    The clocks are known from the blocks at the original setting. Where the other search steps aside, as the run is too
    short to pay for it, training continues at the safe clock.

    Args:
        search: Searches the settings.
        settings: The clocks in MHz, the original one first.
        factor: The slowdown bound.
        tolerance: Steps that are longer than the bound by this fraction count as keeping it.
    """

    def __init__(self, search: RunSearch, settings: Sequence[int], factor: float, tolerance: float = 0.0) -> None:
        self._search = search
        self._settings = settings
        self._factor = factor
        self._tolerance = tolerance
        self._baseline: list[Trial] = []
        self._level_trials: list[Trial] = []

    @property
    def safe_mhz(self) -> int | None:
        """The lowest clock that keeps the bound for any work; None until it is known, and if it is the original."""
        return self._lowest_for([trial.highest_clock_mhz for trial in self._baseline])

    @property
    def level_mhz(self) -> int | None:
        """The lowest clock that keeps the bound if all GPUs do the same work; None if it is not below the safe one."""
        level = self._lowest_for([trial.lowest_clock_mhz for trial in self._baseline])
        return level if level is not None and level < (self.safe_mhz or self._settings[0]) else None

    def ask(self) -> Block:
        """Return what to run next."""
        block = self._search.ask()
        if not block.is_choice or not self._is_over:
            return block
        if self._is_level_due:
            return Block(self.level_mhz or block.setting, self._telling_steps, is_choice=False)
        return Block(self._at_most_known(block.setting), block.steps, is_choice=True)

    def may_continue(self, steps: int, seconds: float) -> bool:
        """Return whether the block asked for may go on: one at the safe clock always may."""
        return self.ask().setting in (self.safe_mhz, self.level_mhz) or self._search.may_continue(steps, seconds)

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """Take in a block."""
        if trial.setting == self._settings[0]:
            self._baseline.append(trial)
        elif trial.setting == self.level_mhz:
            self._level_trials.append(trial)
        self._search.tell(trial, run_steps, run_seconds)

    @property
    def is_done(self) -> bool:
        """Whether the search is over."""
        return self._search.is_done and not self._is_level_due

    @property
    def choice(self) -> int | None:
        """The clock that training would continue at now; None before the original was measured."""
        choice = self._search.choice
        return None if choice is None else self._at_most_known(choice)

    @property
    def cost(self) -> SearchCost | None:
        """The cost of the rest of the search; None before the original was measured."""
        return self._search.cost

    @property
    def stepped_aside(self) -> str | None:
        """The reason that the run stays at its original setting; None if it need not."""
        return self._search.stepped_aside if self.choice in (None, self._settings[0]) else None

    def prediction(self, setting: int | None = None) -> Prediction | None:
        """Predict what a setting would do; that of `choice` if None."""
        return self._search.prediction(setting or self.choice)

    @property
    def _is_over(self) -> bool:
        return self._search.is_done or self._search.stepped_aside is not None

    @property
    def _is_level_due(self) -> bool:
        """Whether the level clock is still to be tried, as nothing lower is chosen and a trial of it can show that."""
        level, choice = self.level_mhz, self._search.choice
        if level is None or not self._is_over or self._level_trials or (choice is not None and choice <= level):
            return False
        lowest, highest = (_mean([getattr(trial, name) for trial in self._baseline]) for name in _CLOCKS)
        difference = (highest or 1.0) / (lowest or 1.0) - 1
        return difference >= _MIN_DIFFERENCE and _time(self._baseline)[1] <= _MAX_STDERR_SHARE * difference

    @property
    def _is_level_kept(self) -> bool:
        """Whether the level clock was tried, and steps were no longer than they should be."""
        if not self._level_trials:
            return False
        (before, before_stderr), (after, after_stderr) = _time(self._baseline), _time(self._level_trials)
        error = _STANDARD_ERRORS * math.hypot(before_stderr, after_stderr)
        return after / before <= self._factor * (1 + max(error, self._tolerance))

    @property
    def _telling_steps(self) -> int:
        """The steps of the trial of the level clock: as telling as those at the original setting."""
        return max(sum(trial.steps for trial in self._baseline), _MIN_LEVEL_STEPS)

    def _lowest_for(self, clocks_mhz: Sequence[float | None]) -> int | None:
        """Return the lowest setting that is not below the mean of some clocks over the factor."""
        mean_mhz = _mean(clocks_mhz)
        if mean_mhz is None:
            return None
        lowest = min((one for one in self._settings if one >= mean_mhz / self._factor), default=self._settings[0])
        return lowest if lowest < self._settings[0] else None

    def _at_most_known(self, choice: int) -> int:
        """Return the choice of the other search, or a lower clock that keeps the bound too, and saves no less."""
        known = self.level_mhz if self._is_level_kept else self.safe_mhz
        if known is None or choice <= known or not self._is_over:
            return choice
        # Near the clock that a GPU runs at by itself, power falls faster than speed. It takes more than noise to say
        # that a lower clock saves less, as it may where the bound is wide.
        other, at_known = self._search.prediction(choice), self._search.prediction(known)
        is_worse = other is not None and at_known is not None and at_known.saving_interval[1] < other.saving_fraction
        return choice if is_worse else known


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _time(trials: Sequence[Trial]) -> tuple[float, float]:
    """Return the mean duration of a step, and its relative standard error."""
    steps = sum(trial.steps for trial in trials)
    mean = math.fsum(trial.measurement.time for trial in trials) / steps
    squares = math.fsum(trial.steps * trial.step_seconds_deviation**2 for trial in trials)
    return mean, math.sqrt(squares / steps) / math.sqrt(steps) / mean
