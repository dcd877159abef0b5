"""Selectors: rules that choose the best power limit among those that were measured."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core._validate import checked_instance, checked_number, checked_object, checked_whole_number
from zeus_core.search._trial import Trial

__all__ = [
    "Energy",
    "MaxSlowdownConstraint",
    "Objective",
    "OptimumSelector",
    "PowerLimitMeasurement",
    "Time",
    "ZeusCost",
    "checked_selector",
]

# Two standard errors: 95 % of equally fast limits count as such. More chooses lower limits, which may be slower.
_STANDARD_ERRORS = 2.0
_ROUNDING = 1e-9  # durations are sums of floats: closer than this, relatively, they are equal


@dataclass(frozen=True)
class PowerLimitMeasurement:
    """A trial as selectors see it. The first three attributes carry their published names.

    Attributes:
        power_limit: Power limit in watts; where SM clocks are searched, the clock in MHz.
        energy: Energy in joules of all GPUs together, over the same number of steps for all limits.
        time: Duration of these steps, in seconds.
        time_stderr: Standard error of `time`, in seconds; 0 if it is not known.
    """

    power_limit: int
    energy: float
    time: float
    time_stderr: float = 0.0

    @classmethod
    def from_trial(cls, trial: Trial, steps: int) -> PowerLimitMeasurement:
        """Scale a trial to a number of steps.

        Raises:
            UsageError: An argument is wrong; the message names it.
        """
        checked_instance("trial", trial, Trial, "Trial(setting=250, steps=40, measurement=...)")
        steps = checked_whole_number("steps", steps, 1)
        return cls(
            trial.setting,
            energy=trial.joules_per_step * steps,
            time=trial.seconds_per_step * steps,
            time_stderr=trial.seconds_per_step_stderr * steps,
        )


class OptimumSelector(ABC):
    """Chooses a power limit. Derive your own selector from this class, or from `Objective` if its rule is a cost."""

    @abstractmethod
    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Return the power limit to use, in watts.

        Args:
            measurements: One for each limit that was tried, at least one.
        """


def checked_selector(selector: OptimumSelector) -> OptimumSelector:
    """Return a selector.

    Raises:
        UsageError: It is something else, such as a class.
    """
    return checked_object("selector", selector, "select", "an OptimumSelector object, such as ZeusCost(eta_knob=0.5)")


class Objective(OptimumSelector):
    """A selector by cost: the measured limit with the lowest cost wins, and the lower limit among equals.

    Costs are compared with the baseline: the highest limit that was measured, which is the original one.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the cost of training at this limit; infinite if the limit must not be chosen."""

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Return the measured limit with the lowest cost."""
        baseline = max(measurements, key=lambda one: one.power_limit)
        return min(measurements, key=lambda one: (self.cost(one, baseline), one.power_limit)).power_limit


class Energy(Objective):
    """Chooses the limit with the lowest energy of the steps, however long they last."""

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the energy in joules."""
        return measurement.energy


class Time(Objective):
    """Chooses the limit with the fastest steps, and the lowest limit among the equally fast.

    Above the power that the work draws, the time does not depend on the limit, and the fastest measurement is chance.
    So every limit within two standard errors of the fastest counts as equally fast.
    """

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the duration in seconds."""
        return measurement.time

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Return the lowest limit that is as fast as the fastest, as far as the measurements can tell."""
        fastest = min(measurements, key=lambda one: one.time)
        return min(one.power_limit for one in measurements if _is_as_fast(one, fastest))


class ZeusCost(Objective):
    r"""Chooses the lowest weighted sum of energy and time, $\eta E + (1 - \eta) P_{max} T$ (Zeus, NSDI'23).

    Args:
        eta_knob: Weight of energy from 0 (time alone) to 1 (energy alone).
        world_size: How many GPUs the energies are summed over.
        max_power_watts: The highest power of one GPU. If None, the original setting, which is a power limit then;
            `GlobalClockOptimizer` takes the original power limit.

    Raises:
        UsageError: An argument is out of its range.
    """

    def __init__(self, eta_knob: float = 0.5, world_size: int = 1, *, max_power_watts: float | None = None) -> None:
        wanted = "0 (time alone) to 1 (energy alone), such as 0.5"
        self.eta_knob: float = checked_number("eta_knob", eta_knob, 0.0, 1.0, wanted)
        self.world_size: int = checked_whole_number("world_size", world_size, 1, "the number of GPUs, at least 1")
        self.max_power_watts: float | None = (
            None
            if max_power_watts is None
            else checked_number("max_power_watts", max_power_watts, 1.0, math.inf, "watts, such as 400, or None")
        )

    def __repr__(self) -> str:
        power = "" if self.max_power_watts is None else f", max_power_watts={self.max_power_watts:g}"
        return f"ZeusCost(eta_knob={self.eta_knob:g}, world_size={self.world_size}{power})"

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the cost in joules."""
        gpu_watts = baseline.power_limit if self.max_power_watts is None else self.max_power_watts
        return self.eta_knob * measurement.energy + (1 - self.eta_knob) * self.world_size * gpu_watts * measurement.time


class MaxSlowdownConstraint(Objective):
    """Chooses the lowest limit at which steps last no longer than a factor times their original duration.

    Args:
        factor: The longest acceptable duration over the duration at the original limit, at least 1.

    Raises:
        UsageError: `factor` is below 1.
    """

    def __init__(self, factor: float = 1.1) -> None:
        self.factor: float = checked_number(
            "factor", factor, 1.0, math.inf, "at least 1, such as 1.1 for 10 % longer steps"
        )

    def __repr__(self) -> str:
        return f"MaxSlowdownConstraint(factor={self.factor:g})"

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the limit in watts; infinite beyond the bound."""
        longest_seconds = self.factor * baseline.time * (1 + _ROUNDING)
        return measurement.power_limit if measurement.time <= longest_seconds else math.inf


def _is_as_fast(measurement: PowerLimitMeasurement, fastest: PowerLimitMeasurement) -> bool:
    error = math.hypot(measurement.time_stderr, fastest.time_stderr)
    return measurement.time <= fastest.time * (1 + _ROUNDING) + _STANDARD_ERRORS * error
