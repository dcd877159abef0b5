"""Selectors: rules that choose the best power limit among those that were measured.

Searches, optimizers and reports ask a selector questions, and never for its type: so a selector of a user's own needs
no more than `select` or `cost`, and says by the other answers what it needs and whether it bounds the time.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from zeus_core.search.trial import Trial
from zeus_core.validate import checked_number, checked_object, checked_whole_number

_logger = logging.getLogger(__name__)

# Two standard errors: 95 % of equally fast limits count as such. More chooses lower limits, which may be slower.
_STANDARD_ERRORS = 2.0
_TIME_TOLERANCE = 0.005  # settings this close to the fastest are equally fast: single measurements differ by as much
_ROUNDING = 1e-9  # durations are sums of floats: closer than this, relatively, they are equal
_LIKE_PERCENT = 10.0  # no limit of a GPU makes steps as slow: 10 and 110 are likely meant as percentages


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
            UsageError: `steps` is not a whole number of at least 1.
        """
        steps = checked_whole_number("steps", steps, 1)
        return cls(
            trial.setting,
            energy=trial.joules_per_step * steps,
            time=trial.seconds_per_step * steps,
            time_stderr=trial.seconds_per_step_stderr * steps,
        )


class OptimumSelector(ABC):
    """Chooses a power limit. Derive your own selector from this class, or from `Objective` if its rule is a cost.

    Only `select` has to be written. The other members answer the questions of searches, optimizers and reports; their
    defaults are those of a rule that bounds no time and needs nothing but measurements.
    """

    def __repr__(self) -> str:
        return type(self).__name__

    @abstractmethod
    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Return the power limit to use, in watts.

        Args:
            measurements: One for each limit that was tried, at least one.
        """

    @property
    def objective(self) -> Objective | None:
        """The cost that `select` minimizes; None if the rule is no cost."""
        return None

    @property
    def bound_factor(self) -> float | None:
        """The slowdown bound: the longest acceptable duration over the original one, at least 1; None without a bound.

        An adaptive search keeps it with a stated probability, and looks for the least energy that keeps it.
        """
        return None

    @property
    def time_tolerance(self) -> float | None:
        """The fraction by which steps may last longer and be as fast as the original; None if that is not demanded."""
        return None

    @property
    def needs_max_power(self) -> bool:
        """Whether the cost takes the original limit for the highest power of a GPU.

        Where settings are no power limits, such as clocks, `completed` sets it.
        """
        return False

    @property
    def prefers_lowest(self) -> bool:
        """Whether the setting itself is the cost: the lowest one wins that may be chosen, at any energy and time."""
        return False

    def prefers(
        self,
        one: tuple[PowerLimitMeasurement, PowerLimitMeasurement],
        other: tuple[PowerLimitMeasurement, PowerLimitMeasurement],
    ) -> bool:
        """Return whether one setting is better than another, such as a clock than a power limit.

        Args:
            one: The measurement of a setting, and of the original of its kind. Where time is bound, it keeps the bound.
            other: The same for the setting it is compared with.
        """
        if longest_factor(self) is not None:  # both keep the bound
            return one[0].energy / one[1].energy < other[0].energy / other[1].energy
        objective = self.objective
        if objective is not None:
            return _relative_cost(objective, one) < _relative_cost(objective, other)
        return other[0].power_limit != self.select([other[0], one[0]]) == one[0].power_limit

    def completed(self, max_power_watts: float, world_size: int | None = None) -> OptimumSelector:
        """Return the selector with the highest power of a GPU, in watts, if it needs one.

        Args:
            max_power_watts: The highest power of one GPU.
            world_size: How many GPUs the energies are summed over; as the selector has it if None.
        """
        return self


def _checked_factor(value: float) -> float:
    """Return a bound of the duration over the original one, and question one that looks like a percentage."""
    factor = checked_number("factor", value, 1.0, math.inf, "at least 1, such as 1.1 for 10 % longer steps")
    if _LIKE_PERCENT <= factor < math.inf:
        words = "factor=%g lets steps take %g times as long; if it is meant as a percentage: 10 %% longer is factor=1.1"
        _logger.warning(words, factor, factor)
    return factor


def checked_selector(selector: OptimumSelector, argument: str = "selector") -> OptimumSelector:
    """Return a selector.

    Raises:
        UsageError: It is something else, such as a class.
    """
    return checked_object(argument, selector, "prefers", "an OptimumSelector object, such as ZeusCost(eta_knob=0.5)")


def longest_factor(selector: OptimumSelector) -> float | None:
    """Return the longest acceptable duration over the original one; None if a selector accepts any."""
    if selector.bound_factor is None and selector.time_tolerance is not None:
        return 1 + selector.time_tolerance
    return selector.bound_factor


class Objective(OptimumSelector):
    """A selector by cost: the measured limit with the lowest cost wins, and the lower limit among equals.

    Costs are compared with the baseline: the highest limit that was measured, which is the original one.
    """

    cost_unit: str = ""
    """The unit of the cost, for tables; empty if it has none."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the cost of training at this limit; infinite if the limit must not be chosen."""

    @property
    def objective(self) -> Objective | None:
        """This cost; None if a derived class chooses by another rule."""
        return self if type(self).select is Objective.select else None

    @property
    def takes_arrays(self) -> bool:
        """Whether `cost` is made of sums and products, and so takes measurements of many settings as arrays."""
        return False

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Return the measured limit with the lowest cost."""
        baseline = max(measurements, key=lambda one: one.power_limit)
        return min(measurements, key=lambda one: (self.cost(one, baseline), one.power_limit)).power_limit


class Energy(Objective):
    """Chooses the limit with the lowest energy of the steps, however long they last."""

    cost_unit: str = "J"

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the energy in joules."""
        return measurement.energy

    @property
    def takes_arrays(self) -> bool:
        """True, if the cost is the one of this class."""
        return _follows(self, Energy)


class Time(Objective):
    """Chooses the limit with the fastest steps, and the lowest limit among the equally fast.

    Above the power that the work draws, the time does not depend on the limit, and the fastest measurement is chance.
    So every limit within two standard errors of the fastest counts as equally fast.
    """

    cost_unit: str = "s"

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the duration in seconds."""
        return measurement.time

    @property
    def objective(self) -> Objective | None:
        """The duration, although not all differences of it count."""
        return self if _follows(self, Time) else super().objective

    @property
    def time_tolerance(self) -> float | None:
        """0.005: single measurements differ by as much. None for a derived class with another rule."""
        return _TIME_TOLERANCE if _follows(self, Time) else None

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

    cost_unit: str = "J"

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

    @property
    def takes_arrays(self) -> bool:
        """True, if the cost is the one of this class."""
        return _follows(self, ZeusCost)

    @property
    def needs_max_power(self) -> bool:
        """Whether `max_power_watts` is None."""
        return self.max_power_watts is None

    def completed(self, max_power_watts: float, world_size: int | None = None) -> ZeusCost:
        """Return the same cost with `max_power_watts`, if it is None here, and over as many GPUs."""
        known = copy(self)
        known.max_power_watts = max_power_watts if self.max_power_watts is None else self.max_power_watts
        known.world_size = self.world_size if world_size is None else world_size
        return known


class MaxSlowdownConstraint(Objective):
    """Chooses the lowest limit at which steps last no longer than a factor times their original duration.

    This limit need not be the one that takes the least energy: see `EnergyWithin`. A search never ends at one that
    another measured one beats both in time and in energy.

    Args:
        factor: The longest acceptable duration over the duration at the original limit, at least 1.

    Raises:
        UsageError: `factor` is below 1.
    """

    cost_unit: str = "W"

    def __init__(self, factor: float = 1.1) -> None:
        self.factor: float = _checked_factor(factor)

    def __repr__(self) -> str:
        return f"MaxSlowdownConstraint(factor={self.factor:g})"

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the limit in watts; infinite beyond the bound."""
        return measurement.power_limit if _is_within(self.factor, measurement, baseline) else math.inf

    @property
    def bound_factor(self) -> float | None:
        """`factor`; None for a derived class with another rule."""
        return self.factor if _follows(self, MaxSlowdownConstraint) else None

    @property
    def prefers_lowest(self) -> bool:
        """True, but for a derived class with another rule."""
        return _follows(self, MaxSlowdownConstraint)


class EnergyWithin(Objective):
    """Chooses the limit with the least energy among those at which steps keep a slowdown bound.

    Args:
        factor: The longest acceptable duration over the duration at the original limit, at least 1.

    Raises:
        UsageError: `factor` is below 1.
    """

    cost_unit: str = "J"

    def __init__(self, factor: float = 1.1) -> None:
        self.factor: float = _checked_factor(factor)

    def __repr__(self) -> str:
        return f"EnergyWithin(factor={self.factor:g})"

    def cost(self, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> float:
        """Return the energy in joules; infinite beyond the bound."""
        return measurement.energy if _is_within(self.factor, measurement, baseline) else math.inf

    @property
    def bound_factor(self) -> float | None:
        """`factor`; None for a derived class with another rule."""
        return self.factor if _follows(self, EnergyWithin) else None


def _follows(selector: Objective, kind: type[Objective]) -> bool:
    """Return whether a selector chooses by the rule of a class: one that derives from it may write another."""
    return type(selector).cost is kind.cost and type(selector).select is kind.select


def _is_within(factor: float, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> bool:
    return measurement.time <= factor * baseline.time * (1 + _ROUNDING)


def _relative_cost(objective: Objective, change: tuple[PowerLimitMeasurement, PowerLimitMeasurement]) -> float:
    """Return the change of a cost, which may be negative, or 0 at the original setting, if it is the user's own."""
    cost, original = objective.cost(*change), objective.cost(change[1], change[1])
    return (cost - original) / (abs(original) or 1.0)


def _is_as_fast(measurement: PowerLimitMeasurement, fastest: PowerLimitMeasurement) -> bool:
    error = math.hypot(measurement.time_stderr, fastest.time_stderr)
    return measurement.time <= fastest.time * (1 + _ROUNDING) + _STANDARD_ERRORS * error
