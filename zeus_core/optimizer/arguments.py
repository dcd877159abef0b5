"""What all optimizers are handed, checked: each error names the argument, the value and what would do."""

from __future__ import annotations

from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.world import SoloWorld, World

__all__ = ["checked_monitor", "checked_world"]


def checked_monitor(monitor: ZeusMonitor) -> ZeusMonitor:
    """A monitor that measures at least one GPU; `UsageError` for anything else."""
    if not isinstance(monitor, ZeusMonitor):
        raise UsageError(f"monitor is {monitor!r}; it must be a ZeusMonitor, such as ZeusMonitor(gpu_indices=[0])")
    if not monitor.gpus:
        raise UsageError("monitor measures no GPU; name those it is to measure, such as ZeusMonitor(gpu_indices=[0])")
    return monitor


def checked_world(world: World | None) -> World:
    """The ranks, or this process alone for None; `UsageError` for anything else, such as the class of a world."""
    if world is not None and (isinstance(world, type) or not callable(getattr(world, "gather", None))):
        raise UsageError(f"world is {world!r}; it must be a World object, such as zeus_core.pytorch.torch_world()")
    return SoloWorld() if world is None else world
