"""How many steps the blocks of an adaptive search within a run last. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from zeus_core.search.belief import Curves
from zeus_core.search.run.run_plan import RunProgress

# Steps at the original setting: so many times (N cv)^(2/3) in a run of N steps. Each step costs its own saving, and the
# error of the choice falls with the square root of their number, so that the least loss is at a power of 2/3.
_ORIGINAL_STEPS = 4.6
_COST_ORIGINAL_STEPS = 1.0  # without a bound: from 4.6, the regret of Energy fell from 2.3 to 1.1 % in 2,000 steps
_MAX_ORIGINAL_SHARE = 0.25  # of the run
_ORIGINAL_BLOCKS = 3  # that they are divided into, so that a drift shows
_ENOUGH, _STILL_ENOUGH = 0.9, 0.8  # of these steps: to begin the search; and not to return, once it has begun

# Of these steps, so many are measured first, the rest when the run returns to the original, at equal distances: blocks
# at the choice alone cannot tell a drift from a setting that is quicker than expected. All at once, 6.0 % of runs that
# drift broke their bound, by up to 3.6 % (200 to 2,000 steps). With one return, 1.7 % of runs of 2,000 and 20,000
# steps that get faster by 5 % did, by up to 1.1 %; like this 1.0 %, by up to 0.6 %, for 0.1 points of saving
# (benchmarks/search_run.py).
_FIRST_SHARE, _RETURNS = 0.6, 2

# Under a tight bound, the error of the slowdown is a large part of what the bound allows, and steps at the original
# cost little: what they do not use up, the others may. So their share of the run is computed (`planned_share`), where
# that promises to save this much more than the rule above: at factor 1.02 it is 0.3 to 0.5; at 1.1 the rule is as good.
# Returns: with 0.6 and 2, as above, 10 % of 108 runs at 1.02 and 20 % spread broke their bound, by up to 1.5 %; like
# this 0.9 %, by up to 0.02 %, and 0.76 instead of 0.71 of the best saving is reached at 5 % (A100, H100, V100, A40 and
# RTX 6000, each left out of its prior, with three drifts; `--held-out` of benchmarks/search_run.py; 2026-11-26).
_MIN_PLANNED_GAIN, _MAX_PLANNED_SHARE = 0.3, 0.5
_PLANNED_FIRST_SHARE, _PLANNED_RETURNS = 0.4, 4

_MAX_SETTLE_SHARE = 0.2  # of the run: if the device settles longer there and back, it does not return

# If more of the run than this is wanted at the original, a trial is too short to tell much. In 60 steps at 20 % spread,
# bounds on measured sweeps were broken by up to 2.9 % with a trial, and by 0.8 % without (benchmarks/search_run.py).
_MAX_WANTED_SHARE = 0.3

_TRIAL_STEPS = 2.0  # of a trial: so many times (N cv)^(2/3)
_COST_TRIAL_STEPS = 0.5  # without a bound: from 1.0, the regret of Energy fell from 1.07 to 0.90 %
_MAX_TRIAL_SHARE = 0.1  # of the run

MIN_BLOCK_STEPS = 5
_MIN_SECONDS = 1.0  # ten updates of an energy counter
_MAX_SHORTEST_SHARE = 0.1  # of the run, for a block that lasts this long

# Blocks at the choice: half as many steps as before, at most an eighth of the run (simulated; see docs/search.md).
_CHOICE_SHARE, _MAX_CHOICE_SHARE = 0.5, 0.125
_MAX_STRETCH = 1.3  # of such a block, so that it ends when a return is due


@dataclass(frozen=True)
class BlockLengths:
    """The lengths of the blocks to come, in steps.

    Attributes:
        run: How far the run has come.
        step_cv: Standard deviation of the duration of one step over its mean.
        measured_steps: The steps measured at the original setting so far.
        settle_seconds: The time in which the device settles after a change.
        is_bound: Whether the selector bounds the slowdown of the run.
        planned_share: The share of the run to measure at the original setting; None for the usual one.
        has_begun: Whether the search has left the original setting.
        is_unknown: Whether nothing was measured yet.
    """

    run: RunProgress
    step_cv: float
    measured_steps: int
    settle_seconds: float
    is_bound: bool
    planned_share: float | None
    has_begun: bool
    is_unknown: bool

    @property
    def shortest_steps(self) -> int:
        """The steps of the shortest block that is worth measuring."""
        if self.is_unknown:
            return MIN_BLOCK_STEPS
        lasting = math.ceil(min(_MIN_SECONDS / self._seconds_per_step, self.run.horizon_steps))
        return max(MIN_BLOCK_STEPS, min(lasting, round(self.run.horizon_steps * _MAX_SHORTEST_SHARE)))

    @property
    def is_noisy(self) -> bool:
        """Whether so many steps are wanted at the original setting that a trial would be too short to tell much."""
        return _ORIGINAL_STEPS * self._usual_steps > _MAX_WANTED_SHARE * self.run.horizon_steps

    @property
    def missing_steps(self) -> int:
        """The steps to measure at the original setting now."""
        run = self.run
        returns = 2 * self._settle_steps <= _MAX_SETTLE_SHARE * run.horizon_steps
        share = self._first_share + (1 - self._first_share) * self._returns_due / self._returns
        wanted = max((share if returns else 1.0) * self._original_steps, self.shortest_steps)
        enough = _STILL_ENOUGH if self.has_begun else _ENOUGH
        return 0 if self.measured_steps >= enough * wanted else math.ceil(wanted - self.measured_steps)

    @property
    def original_steps_left(self) -> int:
        """The steps to measure at the original setting in the rest of the run."""
        return max(math.ceil(self._original_steps) - self.measured_steps, 0)

    @property
    def original_steps(self) -> int:
        """The steps of the next block at the original setting."""
        missing = self.missing_steps
        part = math.ceil((missing + self.run.steps) / _ORIGINAL_BLOCKS)
        return max(min(part, missing), MIN_BLOCK_STEPS)

    @property
    def trial_steps(self) -> int:
        """The steps of a trial."""
        wanted = (_TRIAL_STEPS if self.is_bound else _COST_TRIAL_STEPS) * self._usual_steps
        wanted = min(max(wanted, self.shortest_steps), _MAX_TRIAL_SHARE * self.run.horizon_steps)
        return max(math.ceil(wanted), MIN_BLOCK_STEPS)

    @property
    def settled_trial_steps(self) -> int:
        """The steps of a trial, with those in which the device settles there and back."""
        return self.trial_steps + 2 * self._settle_steps

    @property
    def choice_steps(self) -> int:
        """The steps of a block at the choice."""
        steps = min(_CHOICE_SHARE * self.run.steps, _MAX_CHOICE_SHARE * self.run.horizon_steps)
        if self.planned_share is not None and self._returns_due < self._returns:
            until = (self._returns_due + 1) / (self._returns + 1) * self.run.horizon_steps - self.run.steps
            steps = until + 1 if until < _MAX_STRETCH * steps else steps
        return max(round(steps), MIN_BLOCK_STEPS)

    @property
    def _usual_steps(self) -> float:
        """(N cv)^(2/3)."""
        return math.pow(self.run.horizon_steps * self.step_cv, 2 / 3)

    @property
    def _original_steps(self) -> float:
        """The steps to measure at the original setting in the whole run."""
        if self.planned_share is not None:
            return max(self.planned_share * self.run.horizon_steps, self.shortest_steps)
        usual = (_ORIGINAL_STEPS if self.is_bound else _COST_ORIGINAL_STEPS) * self._usual_steps
        return max(min(usual, _MAX_ORIGINAL_SHARE * self.run.horizon_steps), self.shortest_steps)

    @property
    def _first_share(self) -> float:
        return _FIRST_SHARE if self.planned_share is None else _PLANNED_FIRST_SHARE

    @property
    def _returns(self) -> int:
        """How often the run returns to the original setting, to measure the steps that are not measured first."""
        if self.planned_share is None:
            return _RETURNS
        shortest = max(self.shortest_steps, 2 * self._settle_steps)
        later_steps = (1 - self._first_share) * self._original_steps
        return max(_RETURNS, min(int(later_steps / shortest), _PLANNED_RETURNS))

    @property
    def _returns_due(self) -> int:
        return min(self.run.steps * (self._returns + 1) // self.run.horizon_steps, self._returns)

    @property
    def _settle_steps(self) -> int:
        """The steps in which the device settles."""
        return math.ceil(self.settle_seconds / self._seconds_per_step)

    @property
    def _seconds_per_step(self) -> float:
        return self.run.seconds / self.run.steps if self.run.seconds else self.run.original_seconds


def planned_share(curves: Curves, run: RunProgress, factor: float, confidence: float, step_cv: float) -> float | None:
    """Return the share of a run at its original setting with which it saves most; None if the usual one does as well.

    With a share q of N steps at the original setting, and the others at one setting, the slowdown of the run has the
    standard error

        sigma(q) = cv sqrt((1 - q) / (q N)),

    so that this setting may be slower by x(q) = (factor - 1 - z sigma(q)) / (1 - q), and the run saves
    (1 - q) saving(x(q)), by the expected curves. z is the normal quantile of the confidence.

    Args:
        curves: The estimated curves.
        run: How far the run has come.
        factor: The slowdown bound of the run.
        confidence: The probability with which it is to be kept.
        step_cv: Standard deviation of the duration of one step over its mean.
    """
    log_seconds, log_watts = curves.mean(curves.log_seconds), curves.mean(curves.log_watts)
    slower = np.maximum.accumulate(np.expm1(log_seconds - log_seconds[0]))
    saving = np.maximum.accumulate(-np.expm1(log_seconds + log_watts - log_seconds[0] - log_watts[0]))
    shares = np.arange(1, round(100 * _MAX_PLANNED_SHARE) + 1) / 100
    error = step_cv * np.sqrt((1 - shares) / (shares * run.horizon_steps))
    may_be_slower = np.maximum(factor - 1 - NormalDist().inv_cdf(confidence) * error, 0.0) / (1 - shares)
    saved = (1 - shares) * np.interp(may_be_slower, slower, saving)
    usual = min(_ORIGINAL_STEPS * math.pow(run.horizon_steps * step_cv, 2 / 3) / run.horizon_steps, _MAX_ORIGINAL_SHARE)
    gains = saved.max() > (1 + _MIN_PLANNED_GAIN) * np.interp(usual, shares, saved)
    return float(shares[saved.argmax()]) if gains else None
