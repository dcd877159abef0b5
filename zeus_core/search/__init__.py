"""Searching among the settings of a knob, and what "best" means. Pure: no device, no clock, no framework."""

from zeus_core.search.objectives import (
    Energy,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)
from zeus_core.search.search import Search
from zeus_core.search.sweep import Sweep
from zeus_core.search.trial import Trial

__all__ = [
    "Energy",
    "MaxSlowdownConstraint",
    "Objective",
    "OptimumSelector",
    "PowerLimitMeasurement",
    "Search",
    "Sweep",
    "Time",
    "Trial",
    "ZeusCost",
]
