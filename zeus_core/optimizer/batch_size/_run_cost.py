"""The cost of a run in the unit of the objective of its job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from zeus_core._validate import checked_object
from zeus_core.device import discover_gpus
from zeus_core.errors import UsageError, ZeusError
from zeus_core.search._objectives import Objective, PowerLimitMeasurement, ZeusCost

__all__ = ["JobGpus", "Meter", "Spent", "checked_objective", "cost_of", "discovered_gpus"]


@dataclass(frozen=True)
class JobGpus:
    """The GPUs that a run trains on.

    Attributes:
        count: Their number.
        model: The model of the first one; None if it is not known.
        max_power_watts: The highest power limit of one of them; 0 if it is not known.
    """

    count: int = 0
    model: str | None = None
    max_power_watts: float = 0.0


class Spent(NamedTuple):
    """Time and energy of a run so far, over all ranks."""

    seconds: float
    energy_joules: float | None
    """None if some of it is not known."""
    gpus: JobGpus


class Meter(Protocol):
    """Measures the training of a run."""

    def spent(self) -> Spent | None:
        """Return what was spent so far; None outside of training. A collective call."""
        ...


def checked_objective(objective: Objective | None) -> Objective | None:
    """Return an objective; None stands for the usual one, over the GPUs of the job.

    Raises:
        UsageError: It is none, or its cost cannot be that of a run.
    """
    if objective is None:
        return None
    checked_object("objective", objective, "cost", "an Objective object, such as ZeusCost(eta_knob=0.5) or Energy()")
    if objective.prefers_lowest:
        raise UsageError(f"objective is {objective!r}, whose cost is a power limit; it must be such as Energy()")
    if objective.bound_factor is not None:
        raise UsageError(f"objective is {objective!r}, and no run is the original of others; pass such as Energy()")
    return objective


def cost_of(objective: Objective | None, spent: Spent) -> float | None:
    """Return the cost of a run; None if it is not known.

    Energy that is not known makes the cost unknown, except where the objective does without, as `Time` does.
    """
    gpus = spent.gpus
    usual = ZeusCost(world_size=max(gpus.count, 1))
    used = usual if objective is None else objective
    if used.needs_max_power and not gpus.max_power_watts:
        return None
    joules = math.nan if spent.energy_joules is None else spent.energy_joules
    measurement = PowerLimitMeasurement(round(gpus.max_power_watts), joules, spent.seconds)
    cost = float(used.cost(measurement, measurement))
    return cost if math.isfinite(cost) else None


def discovered_gpus() -> JobGpus:
    """Return the GPUs that this process sees; none without a driver."""
    try:
        gpus = discover_gpus()
        highest = max((gpu.read_power_limit_range_watts().highest_watts for gpu in gpus), default=0.0)
    except ZeusError:
        return JobGpus()
    return JobGpus(len(gpus), gpus[0].name if gpus else None, highest)
