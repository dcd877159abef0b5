"""Measuring: windows of time and energy."""

from zeus_core.monitor.job import JobEnergy, JobMeasurement, measure_job
from zeus_core.monitor.windows import Window, ZeusMonitor
from zeus_core.records import Measurement

__all__ = ["JobEnergy", "JobMeasurement", "Measurement", "Window", "ZeusMonitor", "measure_job"]
