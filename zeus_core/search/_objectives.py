"""What "best" means: the rules that pick one power limit out of those that were measured."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core._validate import checked_number, checked_whole_number

__all__ = [
    "Energy",
    "MaxSlowdownConstraint",
    "Objective",
    "OptimumSelector",
    "PowerLimitMeasurement",
    "Time",
    "ZeusCost",
]

_STANDARD_ERRORS = 2.0
_ROUNDING = 1e-9  # durations are sums of floats: closer than this, relatively, they are equal


@dataclass(frozen=True)
class PowerLimitMeasurement:
    """What a selector sees of a trial. The first three attributes carry their published names.

    Attributes:
        power_limit: Power limit in watts.
        energy: Energy in joules of all GPUs together, over the same number of steps for all limits.
        time: Duration of these steps, in seconds.
        time_error: Standard error of `time`, in seconds; 0 if it is not known.
    """

    power_limit: int
    energy: float
    time: float
    time_error: float = 0.0


class OptimumSelector(ABC):
    """Picks a power limit. Write your own by deriving from this class; see `Objective` for rules that are a cost."""

    @abstractmethod
    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """The power limit to use, in watts.

        Args:
            measurements: One for each limit that was tried, at least one.
        """


class Objective(OptimumSelector):
    """A selector that is a cost: the measured limit of least cost wins, the lower limit among equals.

    The baseline of all comparisons is the highest limit that was measured: the one found before training.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """The cost of running at this limit; infinite where the limit is out of the question."""

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """The measured limit of least cost."""
        baseline = _baseline(measurements)
        return min(measurements, key=lambda it: (self.cost(it, baseline), it.power_limit)).power_limit


class Energy(Objective):
    """The limit at which the steps take the least energy, however long they last."""

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Energy in joules."""
        return measurement.energy


class Time(Objective):
    """The limit at which the steps are fastest; the lowest of those that cannot be told from the fastest.

    Above the power the work draws, time does not depend on the limit, and the fastest measurement is chance. So every
    limit within two standard errors of the fastest counts as equally fast.
    """

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Duration in seconds."""
        return measurement.time

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """The lowest limit that is as fast as the fastest, as far as the measurements can tell."""
        fastest = min(measurements, key=lambda it: it.time)
        return min(it.power_limit for it in measurements if _is_as_fast(it, fastest))


class ZeusCost(Objective):
    r"""The least weighted sum of energy and time, $\eta E + (1 - \eta) P_{max} T$ (Zeus, NSDI'23).

    Args:
        eta_knob: Weight of energy from 0 (time alone) to 1 (energy alone).
        world_size: How many GPUs the energies are summed over.

    Raises:
        UsageError: An argument is out of its range.
    """

    def __init__(self, eta_knob: float = 0.5, world_size: int = 1) -> None:
        wanted = "0 (time alone) to 1 (energy alone), such as 0.5"
        self.eta_knob = checked_number("eta_knob", eta_knob, 0.0, 1.0, wanted)
        self.world_size = checked_whole_number("world_size", world_size, 1, "the number of GPUs, at least 1")

    def __repr__(self) -> str:
        return f"ZeusCost(eta_knob={self.eta_knob:g}, world_size={self.world_size})"

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Cost in joules."""
        highest_power_watts = baseline.power_limit * self.world_size
        return self.eta_knob * measurement.energy + (1 - self.eta_knob) * highest_power_watts * measurement.time


class MaxSlowdownConstraint(Objective):
    """The lowest limit that lengthens the steps by no more than a factor.

    Args:
        factor: The longest acceptable duration over the duration at the limit found before training, at least 1.

    Raises:
        UsageError: `factor` is below 1.
    """

    def __init__(self, factor: float = 1.1) -> None:
        self.factor = checked_number("factor", factor, 1.0, math.inf, "at least 1, such as 1.1 for 10 % longer steps")

    def __repr__(self) -> str:
        return f"MaxSlowdownConstraint(factor={self.factor:g})"

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """The limit in watts; infinite beyond the bound."""
        longest_seconds = self.factor * baseline.time * (1 + _ROUNDING)
        return measurement.power_limit if measurement.time <= longest_seconds else math.inf


def _baseline(measurements: Sequence[PowerLimitMeasurement]) -> PowerLimitMeasurement:
    return max(measurements, key=lambda it: it.power_limit)


def _is_as_fast(measurement: PowerLimitMeasurement, fastest: PowerLimitMeasurement) -> bool:
    error = math.hypot(measurement.time_error, fastest.time_error)
    return measurement.time <= fastest.time * (1 + _ROUNDING) + _STANDARD_ERRORS * error
