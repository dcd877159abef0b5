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
    from zeus_core.mixed.levelling import LevellingOptimizer
    from zeus_core.pipeline.optimizer import PipelineFrequencyOptimizer, PipelineFrequencySettings, PipelineRank

__all__ = [
    "Energy",
    "EnergyWithin",
    "GlobalClockOptimizer",
    "GlobalPowerLimitOptimizer",
    "LevellingOptimizer",
    "MaxSlowdownConstraint",
    "Objective",
    "OptimumSelector",
    "PipelineFrequencyOptimizer",
    "PipelineFrequencySettings",
    "PipelineRank",
    "PowerLimitMeasurement",
    "Time",
    "ZeusCost",
]

# Names of wings, by their modules: the only place in which an optimizer of the core names a wing.
_HOMES = {
    "LevellingOptimizer": "zeus_core.mixed.levelling",
    "PipelineFrequencyOptimizer": "zeus_core.pipeline.optimizer",
    "PipelineFrequencySettings": "zeus_core.pipeline.optimizer",
    "PipelineRank": "zeus_core.pipeline.optimizer",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = _imported_on_use(__name__, _HOMES)
