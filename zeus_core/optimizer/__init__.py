"""Optimizers: they turn what happens in a training loop into hardware settings.

Their hooks never raise into training. A fault is logged once with its remedy, the hardware is put back, and training
goes on without the optimizer.
"""

from zeus_core.optimizer.power_limit import (
    Energy,
    GlobalPowerLimitOptimizer,
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
    "PowerLimitMeasurement",
    "Time",
    "ZeusCost",
]
