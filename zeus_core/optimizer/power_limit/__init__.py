"""The search for a GPU power limit during training, and rules for the best one.

>>> measured = [
...     PowerLimitMeasurement(power_limit=300, energy=90.0, time=1.0),
...     PowerLimitMeasurement(power_limit=200, energy=75.0, time=1.08),
...     PowerLimitMeasurement(power_limit=100, energy=80.0, time=1.5),
... ]
>>> EnergyWithin(factor=1.5).select(measured)
200
>>> MaxSlowdownConstraint(factor=1.5).select(measured)
100
>>> Time().select(measured)
300
"""

from zeus_core.optimizer.global_setting.optimizers import GlobalPowerLimitOptimizer
from zeus_core.search.objectives import (
    Energy,
    EnergyWithin,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)

__all__ = [
    "Energy",
    "EnergyWithin",
    "GlobalPowerLimitOptimizer",
    "MaxSlowdownConstraint",
    "Objective",
    "OptimumSelector",
    "PowerLimitMeasurement",
    "Time",
    "ZeusCost",
]
