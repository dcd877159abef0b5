"""Searching among the settings of a knob, and what "best" means. Pure: no device, no clock, no framework."""

from zeus_core.search._grid_search import Sweep
from zeus_core.search._objectives import (
    Energy,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)
from zeus_core.search._search import Search
from zeus_core.search._trial import Trial

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
