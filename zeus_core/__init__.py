"""Energy measurement and optimisation for deep-learning training.

The core knows devices, windows, searches and plans; it knows no deep-learning framework. Importing it loads neither
torch nor a GPU driver. Start from `ZeusMonitor` to measure, from `TrainingEnergy` to know where the energy of a
training goes, and from `GlobalPowerLimitOptimizer` to save. The names below are imported when they are first used.
"""

from typing import TYPE_CHECKING

from zeus_core._lazy_names import imported_on_use as _imported_on_use

if TYPE_CHECKING:
    from zeus_core.events import Activity
    from zeus_core.monitor import ZeusMonitor, measure
    from zeus_core.optimizer import (
        Energy,
        EnergyWithin,
        GlobalClockOptimizer,
        GlobalPowerLimitOptimizer,
        MaxSlowdownConstraint,
        Time,
        ZeusCost,
    )
    from zeus_core.training import TrainingEnergy

__all__ = [
    "Activity",
    "Energy",
    "EnergyWithin",
    "GlobalClockOptimizer",
    "GlobalPowerLimitOptimizer",
    "MaxSlowdownConstraint",
    "Time",
    "TrainingEnergy",
    "ZeusCost",
    "ZeusMonitor",
    "__version__",
    "measure",
]

__version__ = "0.1.0"

_POWER_LIMIT = "zeus_core.optimizer.power_limit"
_HOMES = {
    "Activity": "zeus_core.events",
    "Energy": _POWER_LIMIT,
    "EnergyWithin": _POWER_LIMIT,
    "GlobalClockOptimizer": "zeus_core.optimizer",
    "GlobalPowerLimitOptimizer": _POWER_LIMIT,
    "MaxSlowdownConstraint": _POWER_LIMIT,
    "Time": _POWER_LIMIT,
    "TrainingEnergy": "zeus_core.training",
    "ZeusCost": _POWER_LIMIT,
    "ZeusMonitor": "zeus_core.monitor",
    "measure": "zeus_core.monitor",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = _imported_on_use(__name__, _HOMES)
