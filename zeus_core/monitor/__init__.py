"""Measuring: windows of time and energy."""

from zeus_core.monitor.windows import Window, ZeusMonitor
from zeus_core.records import Measurement

__all__ = ["Measurement", "Window", "ZeusMonitor"]
