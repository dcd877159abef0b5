"""The time that the work of each rank takes at its setting, and would take at others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.float64]
    _Flags = NDArray[np.bool_]

__all__ = ["RankTimes"]

_SHIFT_STEPS = 3  # in a row, all early or all late: one alone is a stray step, such as a slow batch
_SHIFT_ERRORS = 4.0  # by chance, a step is farther off than that once in 16,000, and three in a row never are
_MIN_SHIFT_FRACTION = 0.01
_KNOWN_STEPS = 6  # of a rank before one of its steps can be told to be stray
_SCATTER_STEPS = 64  # the latest ones of all ranks tell how far a step scatters
_MAX_STEPS = 512  # a mean follows what changes as slowly as the temperature of a machine room
_WEIGHED_STEPS = 64

# A setting bounds the speed: at a clock that is lower by 5 % work takes at most 5 % longer, and less if it waits for
# memory. Once two settings are known, the time between and below them is too, but for the part of the difference by
# which it bends. Near the lowest limit of a board the time grows by up to twice the fraction that a power limit is
# lowered by; near its highest, by less than half of it (`zeus_core/device/simulated/_presets.py`, fitted to public
# measurements).
_CLOCK_EXPONENTS = 0.1, 1.0, 1.0, 1.06  # the lowest, the one before any is known, the highest, and the bend
_LIMIT_EXPONENTS = 0.4, 0.8, 2.0, 1.25
_PREDICTED_ERROR = 0.05  # of a difference that was not measured
_MIN_DIFFERENCE = 0.02  # of two settings that tell an exponent


class RankTimes:
    """The times of the own work of all ranks, without what is common to them: batches that take longer everywhere.

    A rank has two known points: at its highest setting, and at the present one. Between them, and below, its time is
    taken to be a power of the setting.

    Args:
        settings: The setting of each rank.
        are_limits: Whether they are power limits, and not clocks.
    """

    def __init__(self, settings: _Numbers, are_limits: bool) -> None:
        count = len(settings)
        self._exponents = _LIMIT_EXPONENTS if are_limits else _CLOCK_EXPONENTS
        self.seconds: _Numbers = np.ones(count)
        """The mean time at the present setting, in seconds of the first step; predicted where there is no step."""
        self.steps: _Numbers = np.zeros(count)
        """The steps at the present setting."""
        self.effective: _Numbers = settings.copy()
        """The clock, or limit, that each rank really has at its present setting, which is a ceiling."""
        self.top_seconds: _Numbers = np.ones(count)
        """The mean time at the highest setting."""
        self._top_steps: _Numbers = np.zeros(count)
        self._top = settings.copy()
        self._latest = np.zeros((_SHIFT_STEPS, count))  # deviations of the latest steps, as fractions
        self._latest_count = np.zeros(count)
        self._variance = math.nan
        self._scatter_count = 0

    @property
    def scatter(self) -> float:
        """The standard deviation of a step, as a fraction; NaN before it is known."""
        return math.sqrt(self._variance) if self._scatter_count else math.nan

    @property
    def top_deviations(self) -> _Numbers:
        """The standard deviations of a step at the highest setting, with the error of its mean."""
        return self.top_seconds * self.scatter * np.sqrt(1 + 1 / np.maximum(self._top_steps, 1.0))

    def deviations(self, seconds: _Numbers) -> _Numbers:
        """Return the standard deviations of a step that is expected to take so long, with the error of its mean."""
        change = np.abs(np.log(seconds / self.seconds))
        change = np.minimum(change, np.abs(np.log(seconds / self.top_seconds)))
        known = self.scatter * np.sqrt(1 + 1 / np.maximum(self.steps, 1.0))
        return np.asarray(seconds * np.hypot(known, _PREDICTED_ERROR * change))

    def take_step(self, own_seconds: _Numbers, effective: _Numbers, is_top: _Flags) -> tuple[_Flags, bool]:
        """Take in a step.

        Args:
            own_seconds: The time of each rank.
            effective: The clock, or limit, that each rank really had.
            is_top: Whether it has its highest setting.

        Returns:
            Whether a new time has begun for each rank, as its work or its GPU has changed; and whether the step of any
            is stray, or may be the first of a new time.
        """
        if not self.steps.any() and (self.seconds == 1.0).all():
            self.seconds = own_seconds / np.median(own_seconds)
        shares = own_seconds / self._common(own_seconds)
        apart = shares / self.seconds - 1
        is_known = self.steps >= _KNOWN_STEPS
        limit = (
            _MIN_SHIFT_FRACTION if not self._scatter_count else max(_SHIFT_ERRORS * self.scatter, _MIN_SHIFT_FRACTION)
        )
        is_stray = is_known & (np.abs(apart) > limit)
        self._latest = np.vstack([self._latest[1:], apart])
        self._latest_count += 1
        is_full = is_known & (self._latest_count >= _SHIFT_STEPS)
        has_shifted = is_full & ((self._latest.min(axis=0) > limit) | (self._latest.max(axis=0) < -limit))
        self._note_scatter(np.clip(apart[is_known], -limit, limit))
        self._begin_anew(has_shifted)
        self._add(shares, effective, is_top, ~is_stray)
        return has_shifted, bool((is_stray & ~has_shifted).any())

    def change(self, is_changed: _Flags, settings: _Numbers) -> None:
        """Give some ranks another setting, at which their time is predicted."""
        predicted = self.predicted(settings[:, None])[:, 0]
        self.seconds = np.where(is_changed, predicted, self.seconds)
        self.steps[is_changed] = 0
        self._latest_count[is_changed] = 0
        self.effective = np.where(is_changed, np.minimum(settings, self._top), self.effective)

    def predicted(self, settings: _Numbers) -> _Numbers:
        """Return the time of each rank (rows) at some settings (columns); longer ones at lower settings."""
        lowest, usual, highest, bend = self._exponents
        below_top = np.log(self._top / self.effective)
        slower = np.log(self.seconds / self.top_seconds)
        is_known = (below_top > _MIN_DIFFERENCE) & (self.steps > 0)
        chord = np.clip(slower / np.where(is_known, below_top, 1.0), lowest, highest)
        below = np.where(is_known, np.clip(bend * chord, lowest, highest), usual)
        beneath = np.log(self.effective[:, None] / settings)  # negative above the present setting
        lower = np.log(self.seconds)[:, None] + below[:, None] * beneath
        share = 1 + np.minimum(beneath, 0.0) / np.where(below_top > 0, below_top, 1.0)[:, None]
        between = np.log(self.top_seconds)[:, None] + np.maximum(slower, 0.0)[:, None] * np.clip(share, 0.0, 1.0)
        times = np.where((beneath >= 0) | (below_top <= 0)[:, None], lower, between)
        is_free = settings >= self._top[:, None]
        return np.asarray(np.exp(np.where(is_free, np.log(self.top_seconds)[:, None], times)))

    def _common(self, own_seconds: _Numbers) -> float:
        """Return how much longer than usual a step took everywhere: the median, weighted by what is known of ranks."""
        ratios = own_seconds / self.seconds
        weights = np.minimum(self.steps, _WEIGHED_STEPS)
        if not weights.any():
            return float(np.median(ratios))
        order = np.argsort(ratios, kind="stable")
        added = np.cumsum(weights[order])
        return float(ratios[order[np.searchsorted(added, added[-1] / 2)]])

    def _note_scatter(self, apart: _Numbers) -> None:
        if not len(apart):
            return
        self._scatter_count = min(self._scatter_count + len(apart), _SCATTER_STEPS * len(self.seconds))
        before = 0.0 if math.isnan(self._variance) else self._variance
        self._variance = before + (float((apart**2).mean()) - before) * len(apart) / self._scatter_count

    def _begin_anew(self, has_shifted: _Flags) -> None:
        """Keep the latest steps alone; the time at other settings changes in proportion."""
        if has_shifted.any():
            factor = np.where(has_shifted, 1 + self._latest.mean(axis=0), 1.0)
            self.seconds, self.top_seconds = self.seconds * factor, self.top_seconds * factor
            self.steps[has_shifted] = _SHIFT_STEPS - 1.0
            self._top_steps[has_shifted] = np.minimum(self._top_steps[has_shifted], _SHIFT_STEPS - 1.0)
            self._latest_count[has_shifted] = 0

    def _add(self, shares: _Numbers, effective: _Numbers, is_top: _Flags, is_counted: _Flags) -> None:
        self.steps = np.where(is_counted, np.minimum(self.steps + 1, _MAX_STEPS), self.steps)
        pace = np.where(is_counted, 1 / np.maximum(self.steps, 1.0), 0.0)
        before = self.seconds
        self.seconds = before + (shares - before) * pace
        self.effective = self.effective + (effective - self.effective) * pace
        drift = np.where(self.steps >= _MAX_STEPS, self.seconds / before, 1.0)
        self.top_seconds = np.where(is_top, self.seconds, self.top_seconds * drift)
        self._top_steps = np.where(is_top, self.steps, self._top_steps)
        self._top = np.where(is_top, self.effective, self._top)
