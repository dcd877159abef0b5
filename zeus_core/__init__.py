"""Energy measurement and optimisation for deep-learning training.

The core knows devices, windows, searches and plans; it knows no deep-learning framework. Importing it loads neither
torch nor a GPU driver. Start from `ZeusMonitor` to measure, from `TrainingEnergy` to know where the energy of a
training goes, and from `GlobalPowerLimitOptimizer` to save. The names below are imported when they are first used.
"""

TYPE_CHECKING = False  # type checkers take it for true; the module `typing` takes milliseconds to import
if TYPE_CHECKING:
    from zeus_core.events import Activity
    from zeus_core.monitor import ZeusMonitor
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
]

__version__ = "0.1.0"

_HOMES = {
    "Activity": "zeus_core.events",
    "GlobalClockOptimizer": "zeus_core.optimizer",
    "TrainingEnergy": "zeus_core.training",
    "ZeusMonitor": "zeus_core.monitor",
}


def __getattr__(name: str) -> object:
    """Import a name on its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "zeus_core.optimizer.power_limit")), name)
