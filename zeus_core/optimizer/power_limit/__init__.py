"""Finding a GPU power limit during training."""

from zeus_core.optimizer.power_limit.optimizer import GlobalPowerLimitOptimizer
from zeus_core.optimizer.power_limit.phases import Phase
from zeus_core.search.objectives import (
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
