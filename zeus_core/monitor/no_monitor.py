"""The monitor of a training, which must also run where there is nothing to measure."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from zeus_core.device import discover_cpus, discover_gpus
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import DeviceError, NoDeviceError, UsageError
from zeus_core.monitor.selection import local_rank_of
from zeus_core.monitor.windows import ZeusMonitor
from zeus_core.ports import TimeSource
from zeus_core.validate import checked_object

_logger = logging.getLogger(__name__)


class NoMonitor(ZeusMonitor):
    """A monitor that measures no GPU, as there is none, and CPUs at most. Those who get it have been warned.

    Args:
        reason: Why there is none, with the remedy.
        cpus: The CPUs to measure; none if None.
        time_source: See `ZeusMonitor`.
    """

    def __init__(self, reason: str, cpus: CpuDiscovery | None = None, time_source: TimeSource | None = None) -> None:
        found = CpuDiscovery((), reason) if cpus is None else cpus
        super().__init__(gpu_indices=[], cpus=found, time_source=time_source)
        self.reason = reason


def monitor_of_gpus() -> ZeusMonitor:
    """Return a monitor as `ZeusMonitor` makes it, but raise `NoDeviceError` where it would measure CPUs alone."""
    return ZeusMonitor(gpus=discover_gpus())


def training_monitor(
    monitor: ZeusMonitor | None, strict: bool = False, make: Callable[[], ZeusMonitor] = monitor_of_gpus
) -> ZeusMonitor:
    """Return the monitor of a training; where no GPU can be measured, a `NoMonitor`, after one warning.

    This is the one place that decides how training goes on without a device.

    Args:
        monitor: The user's; one is made if None.
        strict: Raise the error instead.
        make: Makes the monitor.

    Raises:
        UsageError: `monitor` is something else, or measures no GPU on purpose.
        DeviceError: No GPU can be measured, and `strict` is true.
    """
    if monitor is None:
        try:
            monitor = make()
        except DeviceError as error:
            if strict:
                raise
            is_repeated = isinstance(error, NoDeviceError) and local_rank_of(os.environ)[0] > 0
            level = logging.INFO if is_repeated else logging.WARNING  # the first rank of the machine says it for all
            reason = str(error)  # a handler may keep what is logged: with the error, all that its callers hold
            return _without_gpus(reason, discover_cpus(), level)
    monitor = checked_monitor(monitor)
    if strict and isinstance(monitor, NoMonitor):
        raise NoDeviceError(monitor.reason)
    return monitor


def checked_monitor(monitor: ZeusMonitor) -> ZeusMonitor:
    """Return a monitor that measures at least one GPU, or a `NoMonitor`, also for one that has found CPUs alone.

    Raises:
        UsageError: It is something else, or measures no GPU on purpose.
    """
    checked_object("monitor", monitor, "begin_window", "a ZeusMonitor, such as ZeusMonitor(gpu_indices=[0])")
    if monitor.no_gpu_because is not None:
        cpus = CpuDiscovery(tuple(monitor.cpus.values()), "this rank measures none")
        return _without_gpus(monitor.no_gpu_because, cpus, logging.WARNING, monitor.time_source)
    if not monitor.gpus and not isinstance(monitor, NoMonitor):
        raise UsageError("monitor measures no GPU; name the GPUs to measure, such as ZeusMonitor(gpu_indices=[0])")
    return monitor


def _without_gpus(reason: str, cpus: CpuDiscovery, level: int, time_source: TimeSource | None = None) -> NoMonitor:
    """Say once what is measured without a GPU, and return the monitor of that."""
    what = "the energy of the CPUs alone is measured, over the whole training" if cpus.cpus else "no energy is measured"
    _logger.log(level, "%s, and training goes on: %s", what, reason)
    return NoMonitor(reason, cpus, time_source)
