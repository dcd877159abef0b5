"""Reports for people: tables, comparisons and pictures of results."""

from zeus_core.report._power_limit import Comparison, draw_time_energy, trial_table

__all__ = [
    "Comparison",
    "draw_time_energy",
    "trial_table",
]
