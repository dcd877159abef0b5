"""Planning the clocks of a training pipeline: from measured profiles to every optimal plan (Perseus, SOSP'24).

    from zeus_core.pipeline import Frontier, PipelineProfile, make_plan, schedules, write_plan

    profile = PipelineProfile.from_csv("profile.csv", blocking_power_watts=83.6)
    frontier = Frontier.of(profile, schedules.one_f_one_b(stages=8, microbatches=96))
    frontier.times_seconds, frontier.energies_joules   # every breakpoint, exactly
    plan = make_plan(frontier, slowdown_factor=1.0)    # or time_seconds=, straggler_seconds=; switch_seconds=0.005
    write_plan(plan, "plan.json")

Pure: no device, no clock, no framework. With numba (extra `pipeline`) the loops are compiled; without it they are
slower and just as right. docs/pipeline.md tells how it works.
"""

from zeus_core.pipeline import baselines, schedules
from zeus_core.pipeline._execution import Execution, execute
from zeus_core.pipeline._frontier import Frontier, FrontierPoint
from zeus_core.pipeline._hull import CostedOption, lower_hull, pareto_choices
from zeus_core.pipeline._kinds import COMPUTE_KINDS, FIXED_KINDS, TRANSFER_KINDS
from zeus_core.pipeline._option import MeasuredOption
from zeus_core.pipeline._plan import Plan
from zeus_core.pipeline._plan_file import plan_from_json, plan_to_json, read_plan, write_plan
from zeus_core.pipeline._planner import make_plan, make_plans
from zeus_core.pipeline._problem import Problem
from zeus_core.pipeline._profile import InstructionProfile, PipelineProfile
from zeus_core.pipeline._schedule import Instruction, Schedule

__all__ = [
    "COMPUTE_KINDS",
    "FIXED_KINDS",
    "TRANSFER_KINDS",
    "CostedOption",
    "Execution",
    "Frontier",
    "FrontierPoint",
    "Instruction",
    "InstructionProfile",
    "MeasuredOption",
    "PipelineProfile",
    "Plan",
    "Problem",
    "Schedule",
    "baselines",
    "execute",
    "lower_hull",
    "make_plan",
    "make_plans",
    "pareto_choices",
    "plan_from_json",
    "plan_to_json",
    "read_plan",
    "schedules",
    "write_plan",
]
