"""The time of the own work of each rank, without waiting for others: at its setting, and predicted at others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.float64]
    _Flags = NDArray[np.bool_]

from zeus_core.ports import DeviceEvent

_SHIFT_STEPS = 3  # in a row, all early or all late: one alone is a stray step, such as a slow batch
_SHIFT_ERRORS = 4.0  # by chance, a step is farther off than that once in 16,000, and three in a row never are
_MIN_SHIFT_FRACTION = 0.01
_KNOWN_STEPS = 6  # of a rank before one of its steps can count as stray
_SCATTER_STEPS = 64  # the latest ones of all ranks, which the scatter of a step is estimated from
_MAX_STEPS = 512  # a mean follows what changes as slowly as the temperature of a machine room
_WEIGHED_STEPS = 64

# A setting bounds the speed: at a clock that is lower by 5 % work takes at most 5 % longer, and less if it waits for
# memory. A power limit lengthens it by less than half of the fraction that it is lowered by near the highest limit of a
# board, and by up to twice that near its lowest (`zeus_core/device/simulated/presets.py`, fitted to public
# measurements). So the exponent of a rank is taken to be the middle one, within its standard deviation, until it is
# measured, and always lies between the lowest and the highest.
_CLOCK_EXPONENTS = 0.1, 0.9, 1.0
_LIMIT_EXPONENTS = 0.3, 0.6, 2.0
_CLOCK_EXPONENT_ERROR, _LIMIT_EXPONENT_ERROR = 0.2, 0.3
_PREDICTED_ERROR = 0.05  # of a difference that was not measured
_SURPRISE_ERRORS = 3.0  # one of 370 steps is as far off by chance; a rank that is so after a change is measured anew
_MIN_SCATTER = 1e-6


class RankTimes:
    """The times of the own work of all ranks, without what is common to them: batches that take longer everywhere.

    Near its present setting, the time of a rank is taken to be a power of the setting. Time and exponent are those that
    all steps make most probable: what was measured at one setting also counts at the next one, and for less the farther
    away it is. Above, the time lies between the present one and that at the highest setting.

    Args:
        settings: The setting of each rank.
        are_limits: Whether they are power limits, and not clocks.
    """

    def __init__(self, settings: _Numbers, are_limits: bool) -> None:
        count = len(settings)
        self._lowest, usual, self._highest = _LIMIT_EXPONENTS if are_limits else _CLOCK_EXPONENTS
        self._exponent_error = _LIMIT_EXPONENT_ERROR if are_limits else _CLOCK_EXPONENT_ERROR
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
        self._exponents = np.full(count, usual)
        # Of the logarithm of the time and of the exponent, in units of the variance of one step
        self._variances = np.full(count, np.inf)
        self._covariances = np.zeros(count)
        self._exponent_variances = np.full(count, np.nan)  # not measured
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

    @property
    def errors(self) -> _Numbers:
        """The standard errors of the mean times, as fractions."""
        return np.asarray(self.scatter * np.sqrt(self._variances))

    def errors_at(self, settings: _Numbers) -> _Numbers:
        """Return the standard errors of the times of each rank (rows) at some settings (columns), as fractions."""
        below = np.log(self.effective[:, None] / settings)
        below = np.where(settings >= self._top[:, None], 0.0, below)  # there it was measured
        return np.asarray(self.scatter * np.sqrt(self._variances_at(below)))

    def deviations(self, seconds: _Numbers, errors: _Numbers) -> _Numbers:
        """Return the standard deviations of a step that is expected to take so long, with the error of its mean."""
        return np.asarray(seconds * np.hypot(self.scatter, errors))

    def add_step(self, own_seconds: _Numbers, effective: _Numbers, is_top: _Flags) -> tuple[_Flags, bool]:
        """Add a step.

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
        below = np.log(self.effective / np.minimum(settings, self._top))
        variances, exponent_variances = self._variances_at(below[:, None])[:, 0], self._known_exponent_variances()
        is_top = settings >= self._top
        predicted = self.predicted(settings[:, None])[:, 0]
        self.seconds = np.where(is_changed, predicted, self.seconds)
        self._covariances = np.where(is_changed, self._covariances + below * exponent_variances, self._covariances)
        self._covariances[is_changed & is_top] = 0.0
        variances = np.where(is_top, 1 / np.maximum(self._top_steps, 1.0), variances)
        self._variances = np.where(is_changed, variances, self._variances)
        self._exponent_variances = np.where(is_changed, exponent_variances, self._exponent_variances)
        self.steps[is_changed] = 0
        self._latest_count[is_changed] = 0
        self.effective = np.where(is_changed, np.minimum(settings, self._top), self.effective)

    def predicted(self, settings: _Numbers) -> _Numbers:
        """Return the time of each rank (rows) at some settings (columns); longer ones at lower settings."""
        below_top = np.log(self._top / self.effective)
        slower = np.log(self.seconds / self.top_seconds)
        beneath = np.log(self.effective[:, None] / settings)  # negative above the present setting
        lower = np.log(self.seconds)[:, None] + self._exponents[:, None] * beneath
        share = 1 + np.minimum(beneath, 0.0) / np.where(below_top > 0, below_top, 1.0)[:, None]
        between = np.log(self.top_seconds)[:, None] + np.maximum(slower, 0.0)[:, None] * np.clip(share, 0.0, 1.0)
        times = np.where((beneath >= 0) | (below_top <= 0)[:, None], lower, between)
        is_free = settings >= self._top[:, None]
        return np.asarray(np.exp(np.where(is_free, np.log(self.top_seconds)[:, None], times)))

    def _known_exponent_variances(self) -> _Numbers:
        usual = (self._exponent_error / max(self.scatter, _MIN_SCATTER)) ** 2
        return np.where(np.isnan(self._exponent_variances), usual, self._exponent_variances)

    def _variances_at(self, below: _Numbers) -> _Numbers:
        """Return the variances of the logarithms of times at settings (columns) this far below the present ones.

        With the state of `_weigh` and b = log(present setting / setting): V + 2 b C + b^2 X + (unforeseen b)^2.
        """
        unforeseen = (_PREDICTED_ERROR * below / max(self.scatter, _MIN_SCATTER)) ** 2
        known = self._variances[:, None] + 2 * below * self._covariances[:, None]
        return np.asarray(known + below**2 * self._known_exponent_variances()[:, None] + unforeseen)

    def _common(self, own_seconds: _Numbers) -> float:
        """Return how much longer than usual a step took everywhere: the median, weighted by what is known of ranks."""
        ratios = own_seconds / self.seconds
        weights = np.minimum(1 / self._variances, _WEIGHED_STEPS)
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
            self._variances[has_shifted] = 1 / (_SHIFT_STEPS - 1.0)
            self._covariances[has_shifted] = 0.0
            self._top_steps[has_shifted] = np.minimum(self._top_steps[has_shifted], _SHIFT_STEPS - 1.0)
            self._latest_count[has_shifted] = 0

    def _add(self, shares: _Numbers, effective: _Numbers, is_top: _Flags, is_counted: _Flags) -> None:
        self.steps = np.where(is_counted, np.minimum(self.steps + 1, _MAX_STEPS), self.steps)
        before = self.seconds
        self._weigh(shares / before - 1, is_counted)
        pace = np.where(is_counted, 1 / np.maximum(self.steps, 1.0), 0.0)
        self.effective = self.effective + (effective - self.effective) * pace
        drift = np.where(self.steps >= _MAX_STEPS, self.seconds / before, 1.0)
        self.top_seconds = np.where(is_top, self.seconds, self.top_seconds * drift)
        self._top_steps = np.where(is_top, 1 / self._variances, self._top_steps)
        self._top = np.where(is_top, self.effective, self._top)

    def _weigh(self, apart: _Numbers, is_counted: _Flags) -> None:
        """Correct times and exponents by how far a step was off.

        A Kalman filter of two states, the logarithm of the time and the exponent, with variances V and X and the
        covariance C in units of the variance of one step; a step observes the first, with variance 1 and error e.

            gains               g = V / (V + 1),  h = C / (V + 1)
            states              time *= 1 + g e,  exponent += h e
            variances           V -= g V,  X -= h C,  C -= g C
        """
        is_first = np.isinf(self._variances)
        variances = np.where(is_first, 1.0, self._variances)
        if self._scatter_count:  # a GPU that does not do as predicted is measured anew
            off = (apart / max(self.scatter, _MIN_SCATTER)) ** 2
            is_surprise = (self.steps < _KNOWN_STEPS) & (off > _SURPRISE_ERRORS**2 * (variances + 1))
            variances = np.where(is_surprise, np.maximum(variances, off), variances)
        gain = np.where(is_first, 1.0, variances / (variances + 1)) * is_counted
        exponent_gain = self._covariances / (variances + 1) * is_counted
        self.seconds = self.seconds * (1 + gain * apart)
        self._exponents = np.clip(self._exponents + exponent_gain * apart, self._lowest, self._highest)
        self._exponent_variances = self._exponent_variances - exponent_gain * self._covariances
        self._covariances = self._covariances * (1 - gain)
        reduced = np.where(is_first, 1.0, np.maximum(variances * (1 - gain), 1 / _MAX_STEPS))
        self._variances = np.where(is_counted, reduced, self._variances)


class OwnWork:
    """The parts of a step in which a rank works, between events of its device.

    Args:
        begin: The begin of the first part; None if it could not be noted.
    """

    __slots__ = ("_parts",)

    def __init__(self, begin: DeviceEvent | None) -> None:
        self._parts: list[list[DeviceEvent | None]] = [[begin]]

    def begin(self, event: DeviceEvent | None) -> None:
        """Begin another part. One that has not ended is none."""
        if len(self._parts[-1]) == 1:
            self._parts.pop()
        self._parts.append([event])

    def end(self, event: DeviceEvent | None) -> None:
        """End the latest part, again if it has ended."""
        self._parts[-1][1:] = [event]

    @property
    def seconds(self) -> float | None:
        """How long the parts took; None if none has ended, or an event was lost or not reached."""
        total, ended = 0.0, [part for part in self._parts if len(part) == 2]
        for events in ended:
            begin, end = [None if event is None else event.seconds() for event in events]
            if begin is None or end is None:
                return None
            total += end - begin
        return total if ended else None
