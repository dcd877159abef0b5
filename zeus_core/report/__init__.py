"""What was measured, for people to read."""

from zeus_core.report._comparison import Comparison, StepCost
from zeus_core.report._pipeline import draw_frontier, draw_timelines, plan_table
from zeus_core.report._power_limit import draw_time_energy, step_cost, trial_table

__all__ = [
    "Comparison",
    "StepCost",
    "draw_frontier",
    "draw_time_energy",
    "draw_timelines",
    "plan_table",
    "step_cost",
    "trial_table",
]
