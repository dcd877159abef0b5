"""Optimizers: they turn the events of a training loop into hardware settings.

Their hooks never raise into training. A fault is logged once with its remedy, the original settings are restored, and
training continues without the optimizer.
"""

import importlib
from typing import TYPE_CHECKING, Any

from zeus_core.optimizer._global_setting._optimizers import GlobalClockOptimizer
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
    from zeus_core.optimizer.pipeline_frequency import (
        PipelineFrequencyOptimizer,
        PipelineFrequencySettings,
        PipelineRank,
    )

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
_IN_WINGS = {"LevellingOptimizer": "zeus_core.mixed.levelling"}


def __getattr__(name: str) -> Any:
    """Import the names that need more on first use: the search for a power limit does without."""
    module = _IN_WINGS.get(name)
    if module is not None:
        return getattr(importlib.import_module(module), name)
    if name in __all__:
        from zeus_core.optimizer import pipeline_frequency

        return getattr(pipeline_frequency, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
