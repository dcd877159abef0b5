"""Measuring: windows of time and energy."""

from zeus_core.measurement import Measurement
from zeus_core.monitor._job_total import measure_job
from zeus_core.monitor.measured_calls import measure
from zeus_core.monitor.power_monitor import PowerMonitor, PowerSample
from zeus_core.monitor.windows import Window, ZeusMonitor

__all__ = [
    "Measurement",
    "PowerMonitor",
    "PowerSample",
    "Window",
    "ZeusMonitor",
    "measure",
    "measure_job",
]
