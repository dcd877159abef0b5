"""Reports for people: tables, comparisons and pictures of results."""

from zeus_core.report._power_limit import Comparison, draw_time_energy, trial_table
from zeus_core.report._recurring import draw_regrets, regret_table

__all__ = [
    "Comparison",
    "draw_regrets",
    "draw_time_energy",
    "regret_table",
    "trial_table",
]
