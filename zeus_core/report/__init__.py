"""Reports for people: tables, comparisons and pictures of results."""

from zeus_core.report._pipeline import draw_timelines
from zeus_core.report._power_limit import Comparison, draw_time_energy, trial_table

__all__ = [
    "Comparison",
    "draw_time_energy",
    "draw_timelines",
    "trial_table",
]
