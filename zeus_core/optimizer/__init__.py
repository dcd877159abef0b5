"""Optimizers: they turn the events of a training loop into hardware settings.

Their hooks never raise into training. A fault is logged once with its remedy, the original settings are restored, and
training continues without the optimizer.
"""

from typing import TYPE_CHECKING

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

if not TYPE_CHECKING:  # type checkers would take every name for one of it

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
