"""Reports for people: tables, comparisons and pictures of results."""

from zeus_core.report._trial_table import draw_time_energy, trial_table
from zeus_core.search.comparison import Comparison

__all__ = [
    "Comparison",
    "draw_time_energy",
    "trial_table",
]
