"""Optimizers: they turn the events of a training loop into hardware settings.

Their hooks never raise into training. A fault is logged once with its remedy, the original settings are restored, and
training continues without the optimizer.
"""

from typing import TYPE_CHECKING

from zeus_core._lazy_names import imported_on_use as _imported_on_use
from zeus_core.optimizer.global_setting.optimizers import GlobalClockOptimizer
from zeus_core.optimizer.power_limit import (
    Energy,
    EnergyWithin,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)

if TYPE_CHECKING:
    from zeus_core.pipeline import PipelineFrequencyOptimizer

__all__ = [
    "Energy",
    "EnergyWithin",
    "GlobalClockOptimizer",
    "GlobalPowerLimitOptimizer",
    "MaxSlowdownConstraint",
    "Objective",
    "OptimumSelector",
    "PipelineFrequencyOptimizer",
    "PowerLimitMeasurement",
    "Time",
    "ZeusCost",
]

if not TYPE_CHECKING:  # the only name of a wing in the core: the published place of Perseus, which users import
    __getattr__, __dir__ = _imported_on_use(__name__, {"PipelineFrequencyOptimizer": "zeus_core.pipeline"})
