"""Fits: the line that measured steps of a device lie on, at one setting, and how far off it they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation.device_options import MAX_BATCH, MAX_WATTS, DeviceOption
from zeus_core.validate import checked_number, checked_whole_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.float64]

# Single measurements in public sweeps (Zeus, NSDI'23) scatter by 1 to 3 %. A floor must explain more than that.
_SCATTER = 0.01
# In 830 pairs of batches in the same sweeps, the step with the larger batch is at most 15 % quicker, by chance.
_MAX_FALL_FRACTION = 0.3


@dataclass(frozen=True)
class MeasuredBatch:
    """A measured step of one device.

    Attributes:
        setting: Watts of a power limit, or MHz of a clock.
        batch: Samples of the step.
        seconds: How long the device computed, without waiting for others.
        watts: Its mean power meanwhile.

    Raises:
        UsageError: A number is out of its range, NaN included.
    """

    setting: int
    batch: int
    seconds: float
    watts: float

    def __post_init__(self) -> None:
        """Check all values."""
        object.__setattr__(self, "setting", checked_whole_number("setting", self.setting, 1))
        wanted = f"a whole number of samples, 1 to {MAX_BATCH}"
        object.__setattr__(self, "batch", checked_whole_number("batch", self.batch, 1, wanted, MAX_BATCH))
        for name, minimum, wanted in (
            ("seconds", 1e-6, "seconds, 1e-6 to 1e6"),
            ("watts", 1e-3, "watts, 0.001 to 1e6"),
        ):
            object.__setattr__(self, name, checked_number(name, getattr(self, name), minimum, 1e6, wanted))


class _Line(NamedTuple):
    """Times of steps: `max(floor, fixed + batch * per sample)`."""

    fixed: float
    per_sample: float
    floor: float
    has_floor: bool  # one that the smallest batches lie on

    def seconds(self, batches: _Numbers) -> _Numbers:
        return np.maximum(self.floor, self.fixed + self.per_sample * batches)

    @property
    def is_bent(self) -> bool:
        """Whether some batches are on the floor, and others above."""
        return self.has_floor and self.per_sample > 0.0 and self.floor > self.fixed

    def fullness(self, batches: _Numbers) -> _Numbers:
        """Return batches as shares of the largest one on the floor, at most 1."""
        return np.minimum(1.0, batches * self.per_sample / (self.floor - self.fixed))


class _Power(NamedTuple):
    """Energy of steps: see the attributes of `DeviceOption`."""

    watts: float
    fixed_joules: float = 0.0
    floor_watts: float | None = None

    @property
    def numbers(self) -> int:
        """How many numbers are fitted."""
        return 1 + (self.fixed_joules != 0.0) + (self.floor_watts is not None)

    def joules(self, line: _Line, batches: _Numbers) -> _Numbers:
        joules: _Numbers = self.watts * line.seconds(batches) + self.fixed_joules
        if self.floor_watts is None:
            return joules
        fullness = line.fullness(batches)
        return joules * fullness + self.floor_watts * line.floor * (1.0 - fullness)


def fitted_option(points: Sequence[MeasuredBatch]) -> DeviceOption:
    """Return the option that fits the measured steps at one setting: a line for the time, and one for the energy.

    The sum of squares of relative deviations is least. A floor is fitted to the smallest batches if it explains more
    than scatter; power then rises from that of the floor. Energy is in proportion to the time above the floor, at one
    power, unless a line of its own explains more than scatter. Where the time would come down to 0 before the batch
    does, steps with batches smaller than those measured take as long as with the smallest.

    Args:
        points: At least one, all at the same setting.

    Raises:
        UsageError: There is only one batch size, or steps take far less time with a larger batch.
    """
    points = sorted(points, key=lambda point: point.batch)
    _check_rise(points)
    batches, seconds, watts = (np.array([getattr(point, name) for point in points], float) for name in _COLUMNS)
    firsts = np.flatnonzero(np.diff(batches, prepend=0.0))  # of each batch size
    if len(firsts) < 2:
        raise UsageError(
            f"at {points[0].setting} there is only the batch size {points[0].batch}; measure another one too, as one "
            "does not show how the time depends on the batch"
        )
    lines = [_fitted_line(batches, seconds, int(first)) for first in firsts[:-1]]
    line = min(lines, key=lambda one: _badness(one, batches, seconds))
    power = _fitted_power(line, batches, seconds * watts)
    option = DeviceOption(
        setting=points[0].setting,
        fixed_seconds=line.fixed,
        seconds_per_sample=line.per_sample,
        power_watts=power.watts,
        floor_seconds=line.floor,
        floor_power_watts=power.floor_watts,
        measured_batches=(points[0].batch, points[-1].batch),
        time_error_fraction=_root_mean_square(line.seconds(batches) / seconds - 1.0),
        fixed_joules=power.fixed_joules,
    )
    joules = np.array([option.joules(point.batch) for point in points])
    return replace(option, energy_error_fraction=_root_mean_square(joules / (seconds * watts) - 1.0))


_COLUMNS = ("batch", "seconds", "watts")


def _check_rise(points: Sequence[MeasuredBatch]) -> None:
    longest = points[0]
    for point in points[1:]:
        if point.batch > longest.batch and point.seconds < longest.seconds * (1.0 - _MAX_FALL_FRACTION):
            raise UsageError(
                f"at {point.setting} a step takes {longest.seconds:g} s with a batch of {longest.batch}, but "
                f"{point.seconds:g} s with {point.batch}: measure both again"
            )
        longest = max(longest, point, key=lambda one: one.seconds)


def _fitted_line(batches: _Numbers, seconds: _Numbers, on_floor: int) -> _Line:
    """Fit a floor to the first points, and a line to the others."""
    columns = np.stack([np.ones(len(batches) - on_floor), batches[on_floor:]])
    fixed, per_sample = _least_squares(columns, seconds[on_floor:])
    if per_sample < 0.0:
        inverse = 1.0 / seconds[on_floor:]
        fixed, per_sample = float(inverse.sum() / (inverse @ inverse)), 0.0
    if on_floor:
        inverse = 1.0 / seconds[:on_floor]
        return _Line(fixed, per_sample, float(inverse.sum() / (inverse @ inverse)), True)
    if fixed >= 0.0:
        return _Line(fixed, per_sample, 0.0, False)
    lowest = fixed + per_sample * float(batches[0])
    return _Line(fixed, per_sample, lowest if lowest > 0.0 else float(seconds.min()), False)


def _badness(line: _Line, batches: _Numbers, seconds: _Numbers) -> float:
    return _criterion(line.seconds(batches) / seconds - 1.0, 2 + line.has_floor)


def _fitted_power(line: _Line, batches: _Numbers, joules: _Numbers) -> _Power:
    """Fit what steps take above the floor, and on it; with fixed energy if that explains more than scatter."""
    fits = [fit for fit in (_one_power(line, batches, joules), _with_fixed_energy(line, batches, joules)) if fit]
    return min(fits, key=lambda one: _criterion(one.joules(line, batches) / joules - 1.0, one.numbers))


def _one_power(line: _Line, batches: _Numbers, joules: _Numbers) -> _Power:
    seconds = line.seconds(batches)
    alike = seconds / joules
    power = float(alike.sum() / (alike @ alike))
    if not line.is_bent:
        return _Power(min(power, MAX_WATTS))
    fullness = line.fullness(batches)
    above, of_floor = _least_squares(np.stack([seconds * fullness, seconds * (1.0 - fullness)]), joules)
    is_possible = 0.0 <= above <= MAX_WATTS and 0.0 <= of_floor <= MAX_WATTS
    return _Power(above, floor_watts=of_floor) if is_possible else _Power(min(power, MAX_WATTS))


def _with_fixed_energy(line: _Line, batches: _Numbers, joules: _Numbers) -> _Power | None:
    """Return the fit of a line for the energy; None if no GPU draws as much or as little, or all steps take as long."""
    if line.per_sample == 0.0:
        return None
    seconds = line.seconds(batches)
    floor_watts = None
    if line.is_bent and len(batches) > 2:
        fullness = line.fullness(batches)
        columns = np.stack([seconds * fullness, fullness, seconds * (1.0 - fullness)])
        power, fixed, floor_watts = _least_squares(columns, joules)
    else:
        power, fixed = _least_squares(np.stack([seconds, np.ones(len(seconds))]), joules)
    least = power * float(line.seconds(np.ones(1))[0]) + fixed
    if least < 0.0 or not all(0.0 <= watts <= MAX_WATTS for watts in (power, floor_watts or 0.0)):
        return None
    return _Power(power, fixed, floor_watts)


def _least_squares(columns: _Numbers, wanted: _Numbers) -> list[float]:
    """Return the factors of some columns whose sum is nearest to the wanted values, relative to these."""
    relative = (columns / wanted).T
    scale = np.abs(relative).max(axis=0)
    scale[scale == 0.0] = 1.0
    found = np.linalg.lstsq(relative / scale, np.ones(len(wanted)), rcond=None)[0] / scale
    return [float(factor) for factor in found]


def _criterion(deviations: _Numbers, numbers: int) -> float:
    """Return the Bayesian information criterion of a fit of some numbers."""
    points = len(deviations)
    return points * math.log(_root_mean_square(deviations) ** 2 + _SCATTER**2) + numbers * math.log(points)


def _root_mean_square(values: _Numbers) -> float:
    return float(np.sqrt(np.mean(values**2)))
