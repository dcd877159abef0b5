"""Measuring: windows of time and energy."""

from zeus_core.monitor.instruments import Reading
from zeus_core.monitor.job import JobEnergy, JobMeasurement, measure_job
from zeus_core.monitor.selection import warn_unless_measured
from zeus_core.monitor.windows import Window, ZeusMonitor
from zeus_core.records import Measurement

__all__ = [
    "JobEnergy",
    "JobMeasurement",
    "Measurement",
    "Reading",
    "Window",
    "ZeusMonitor",
    "measure_job",
    "warn_unless_measured",
]
