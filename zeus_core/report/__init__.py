"""Reports for people: tables, comparisons and pictures of results."""

from zeus_core.report._trial_table import draw_time_energy, trial_table

__all__ = [
    "draw_time_energy",
    "trial_table",
]
