"""The search for a GPU power limit during training."""

from zeus_core.optimizer.power_limit._optimizer import GlobalPowerLimitOptimizer
from zeus_core.optimizer.power_limit._phases import Phase
from zeus_core.search._objectives import (
    Energy,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)

__all__ = [
    "Energy",
    "GlobalPowerLimitOptimizer",
    "MaxSlowdownConstraint",
    "Objective",
    "OptimumSelector",
    "Phase",
    "PowerLimitMeasurement",
    "Time",
    "ZeusCost",
]
