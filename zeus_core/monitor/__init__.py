"""Measuring: windows of time and energy."""

from zeus_core.measurement import Measurement
from zeus_core.monitor._instruments import Reading
from zeus_core.monitor._job import JobEnergy, JobMeasurement, measure_job
from zeus_core.monitor._selection import warn_unless_measured
from zeus_core.monitor._windows import Window, ZeusMonitor

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
