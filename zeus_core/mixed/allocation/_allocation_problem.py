"""The problem of an allocation as arrays, and its relaxation for one duration of the slowest rank.

A plan costs the work of each device, and a rate for every second until the slowest rank is done. Once the duration is
fixed, devices depend on each other only by the sum of their batches: each has a cost for every batch that it can do in
that time. The relaxation takes the lower convex hull of each of these in place of the cost itself. Its dual is a price
of a sample, at which every device chooses for itself; it bounds the cost from below.

Rows are devices, columns are their options or some of their batches. Batches are counted in units, of the multiple that
the user asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeus_core.mixed.allocation.device_options import DeviceOption, DeviceOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.float64]
    _Units = NDArray[np.int64]

_ROUNDING = 1e-12  # sums of a thousand costs are off by less, relatively
_MAX_LOSS = 1e-8  # of a bound, by a price that is not quite the best; a better one takes longer
_MAX_PRICES = 100  # tried for one relaxation; ten are usual, as each cuts off a part that held the best one


class Relaxed(NamedTuple):
    """The relaxation for one duration.

    Attributes:
        cost: No work costs less; infinite if the batch cannot be done in time.
        price: The price of a unit.
        fewer: Units of each device at that price, not more than wanted in all.
        more: The same, not fewer than wanted.
    """

    cost: float
    price: float
    fewer: _Units
    more: _Units


class AllocationProblem:
    """Devices that share a number of units.

    Args:
        devices: The devices.
        units: How many units they share.
        samples_per_unit: Samples of a unit.
        min_units: The fewest units of each device.
        energy_weight: Cost of a joule.
        time_weight: Cost of a second of the step.
    """

    def __init__(
        self,
        devices: Sequence[DeviceOptions],
        units: int,
        samples_per_unit: int,
        min_units: int,
        energy_weight: float,
        time_weight: float,
    ) -> None:
        self.units, self.min_units, self._samples_per_unit = units, min_units, samples_per_unit
        self._energy_weight = energy_weight
        self._blocking = np.array([device.blocking_power_watts for device in devices])[:, None]
        self.rate = energy_weight * float(self._blocking.sum()) + time_weight  # cost of a second of the slowest rank
        rows = [
            [
                (
                    *(option.fixed_seconds, option.seconds_per_sample, option.floor_seconds, option.power_watts),
                    *(option.fixed_joules, _saved_joules(option), option.batch_at_floor),
                    min(device.largest_batch(option) // samples_per_unit, units),
                )
                for option in device.options
            ]
            for device in devices
        ]
        most = max(map(len, rows))
        missing = (0.0, 0.0, math.inf, 0.0, 0.0, 0.0, 0.0, -1)  # takes forever
        padded = np.array([row + [missing] * (most - len(row)) for row in rows], float)
        columns = np.moveaxis(padded, 2, 0)
        self._fixed, self._per_sample, self._floor, self._power, self._fixed_joules, *others = columns
        self._saved_joules, self._at_floor, caps = others
        self._caps = caps.astype(np.int64)
        self._longest = self.seconds(self._caps)
        self._corner_units, self._corner_seconds, self._corner_costs = self._corners()

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self._fixed)

    @property
    def options(self) -> int:
        """The largest number of options of a device."""
        return int(self._fixed.shape[1])

    def seconds(self, units: _Units) -> _Numbers:
        """Return how long units last with each option; 0 units last as long as an empty batch."""
        seconds: _Numbers = np.maximum(self._floor, self._fixed + units * self._samples_per_unit * self._per_sample)
        return seconds

    def costs(self, units: _Units, seconds: _Numbers) -> _Numbers:
        """Return what units cost above waiting for as long, with each option."""
        batches = units * self._samples_per_unit
        emptiness = 1.0 - np.minimum(1.0, batches / np.maximum(self._at_floor, 1e-9))
        joules = self._fixed_joules - emptiness * self._saved_joules
        with np.errstate(invalid="ignore"):  # a missing option
            costs: _Numbers = self._energy_weight * ((self._power - self._blocking) * seconds + joules)
        return costs

    def lowest_costs(self, device: int, units: _Units, longest_seconds: float) -> _Numbers:
        """Return the lowest cost of each of some units on one device within a time, infinite if it cannot."""
        return self._one(device).best_options(units, longest_seconds)[0]

    def _one(self, device: int) -> AllocationProblem:
        """Return the part of the problem with one device."""
        part = object.__new__(AllocationProblem)
        part.__dict__ = {
            name: value[[device]] if isinstance(value, np.ndarray) else value for name, value in vars(self).items()
        }
        return part

    def best_options(self, units: _Units, longest_seconds: float) -> tuple[_Numbers, _Units]:
        """Return the lowest cost of each device's units within a time, infinite if it cannot, and the option."""
        column = units[:, None]
        seconds = self.seconds(column)
        within = (seconds <= longest_seconds) & (column <= self._caps)
        costs = np.where(within, self.costs(column, seconds), math.inf)
        # Among equal costs, the lowest setting, which is the last.
        chosen = costs.shape[1] - 1 - np.argmin(costs[:, ::-1], axis=1)
        lowest = costs[np.arange(len(costs)), chosen]
        is_empty = units == 0
        last = (self._caps >= 0).sum(axis=1) - 1
        return np.where(is_empty, 0.0, lowest), np.where(is_empty, last, chosen)

    def makespan(self, units: _Units, options: _Units) -> float:
        """Return how long the slowest device takes."""
        seconds = self.seconds(units[:, None])[np.arange(self.devices), options]
        return float(np.where(units > 0, seconds, 0.0).max())

    def most_units(self, longest_seconds: float) -> _Units:
        """Return the most units that each option can do within a time; -1 if not the fewest that it must."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found = (longest_seconds - self._fixed) / (self._per_sample * self._samples_per_unit)
        found = np.where(np.isnan(found), math.inf, found)
        most = np.clip(np.floor(found), -1, self._caps).astype(np.int64)
        # By division a batch may just miss, or just fit, the time that it takes itself.
        following = np.minimum(most + 1, self._caps)
        most = np.where(self.seconds(following) <= longest_seconds, following, most)
        most = np.where(self.seconds(most) > longest_seconds, most - 1, most)
        most = np.where(self._longest <= longest_seconds, self._caps, most)  # also where a sample takes no time
        least = max(self.min_units, 1)
        return np.where((self._floor > longest_seconds) | (most < least), -1, most)

    def can_do(self, longest_seconds: float) -> bool:
        """Return whether the devices together can do all units within a time."""
        most = self.most_units(longest_seconds).max(axis=1)
        if self.min_units and (most < 0).any():
            return False
        return int(np.maximum(most, 0).sum()) >= self.units

    @property
    def longest_seconds(self) -> float:
        """The time of the slowest option with the largest batch: more time changes nothing."""
        return float(self._longest.max(where=self._caps > 0, initial=0.0))

    def shortest_seconds(self) -> float:
        """Return the shortest time in which the devices can do all units, to 13 digits. They must be able to at all."""
        low, high = 0.0, self.longest_seconds
        while high - low > 1e-13 * high:
            middle = low + (high - low) / 2
            low, high = (low, middle) if self.can_do(middle) else (middle, high)
        return high

    def _corners(self) -> tuple[_Units, _Numbers, _Numbers]:
        """Return the batches, of each option, that may be corners of the hull for some duration.

        Between them the cost is a straight line. Where the mean cost of a unit is above that of a further one, it is
        cheaper to mix no units with more.
        """
        least = np.full_like(self._caps, max(self.min_units, 1))
        kink = np.floor(np.minimum(self._at_floor, 1e15) / self._samples_per_unit).astype(np.int64)
        found = []
        for corner in (least, kink, kink + 1):
            units = np.clip(corner, least, np.maximum(self._caps, least))
            costs, further = (self.costs(one, self.seconds(one)) for one in (units, units + 1))
            with np.errstate(invalid="ignore"):  # a missing option
                is_corner = (least <= self._caps) & ((costs < units * (further - costs)) | (self.min_units > 0))
            columns = is_corner.any(axis=0)
            found.append(
                (units[:, columns], np.where(is_corner, self.seconds(units), math.inf)[:, columns], costs[:, columns])
            )
        units, seconds, costs = (np.hstack(part) for part in zip(*found, strict=True))
        return units, seconds, costs

    def relaxed(self, longest_seconds: float) -> Relaxed:
        """Return the relaxation for a duration of the slowest rank."""
        most = self.most_units(longest_seconds)
        units = np.hstack([np.zeros((self.devices, 1), np.int64), self._corner_units, np.maximum(most, 0)])
        costs = np.hstack(
            [
                np.full((self.devices, 1), math.inf if self.min_units else 0.0),
                np.where(self._corner_seconds <= longest_seconds, self._corner_costs, math.inf),
                np.where(most >= 0, self.costs(most, self.seconds(most)), math.inf),
            ]
        )
        is_missing = np.isinf(costs)
        first = np.where(is_missing, np.iinfo(np.int64).max, units).min(axis=1, keepdims=True)
        last = np.where(is_missing, -1, units).max(axis=1, keepdims=True)
        if (last < 0).any() or last.sum() < self.units:
            return Relaxed(math.inf, 0.0, np.zeros(0, np.int64), np.zeros(0, np.int64))
        fewer = self._choice(np.where(units == first, costs, math.inf), units)
        more = self._choice(np.where(units == last, costs, math.inf), units)
        return self._at_best_price(units, costs, fewer, more)

    def _at_best_price(
        self,
        units: _Units,
        costs: _Numbers,
        fewer: tuple[float, int, _Units],
        more: tuple[float, int, _Units],
    ) -> Relaxed:
        """Raise the bound from price to price, until both choices cost the same at it."""
        scale = 1.0 + abs(fewer[0]) + abs(more[0])
        bound, price = (fewer[0] if fewer[1] == more[1] else -math.inf), 0.0
        for _ in range(_MAX_PRICES):
            if fewer[1] == more[1]:
                break
            slope = (more[0] - fewer[0]) / (more[1] - fewer[1])
            found = self._choice(costs - slope * units, units, costs)
            dual = found[0] + slope * (self.units - found[1])
            if dual > bound:
                bound, price = dual, slope
            if fewer[0] + slope * (self.units - fewer[1]) - dual <= _MAX_LOSS * scale:
                break
            if found[1] <= self.units:
                fewer = found
            if found[1] >= self.units:
                more = found
        return Relaxed(bound - _ROUNDING * scale, price, fewer[2], more[2])

    @staticmethod
    def _choice(keys: _Numbers, units: _Units, costs: _Numbers | None = None) -> tuple[float, int, _Units]:
        """Return cost, sum and units of each device, where each chooses its lowest key."""
        place = np.arange(len(keys)), np.argmin(keys, axis=1)
        chosen = units[place]
        return float((keys if costs is None else costs)[place].sum()), int(chosen.sum()), chosen


def _saved_joules(option: DeviceOption) -> float:
    """Return the energy that a step as short as the floor would take less if its batch were empty."""
    if option.floor_power_watts is None:
        return 0.0
    return (option.power_watts - option.floor_power_watts) * option.floor_seconds + option.fixed_joules
