"""Levelling: GPUs that would wait for a slower one run at a lower setting, at which they do not wait."""

from zeus_core.mixed.levelling._levelling_optimizer import LevellingOptimizer
from zeus_core.mixed.levelling._work_end import report_work_end

__all__ = ["LevellingOptimizer", "report_work_end"]
