"""Measuring: windows of time and energy."""

from zeus_core.measurement import DeviceEnergy, Measurement
from zeus_core.monitor._job_total import measure_job
from zeus_core.monitor.measured_calls import measure
from zeus_core.monitor.power_monitor import PowerMonitor
from zeus_core.monitor.windows import ZeusMonitor

__all__ = [
    "DeviceEnergy",
    "Measurement",
    "PowerMonitor",
    "ZeusMonitor",
    "measure",
    "measure_job",
]
