"""Plan the clocks of a training pipeline: from measured profiles to every optimal plan (Perseus, SOSP'24).

    from zeus_core.pipeline import Frontier, PipelineProfile, make_plan, schedules, write_plan

    profile = PipelineProfile.from_csv("profile.csv", blocking_power_watts=83.6)
    frontier = Frontier.from_profile(profile, schedules.one_f_one_b(stages=8, microbatches=96))
    frontier.times_seconds, frontier.energies_joules   # every breakpoint, exactly
    plan = make_plan(frontier, slowdown_factor=1.0)    # or time_seconds=, straggler_seconds=; switch_seconds=0.005
    write_plan(plan, "plan.json")

Pure: no device, no time source, no framework. LLVM (llvmlite, extra `pipeline`) compiles the loops; without it they are
slower and give the same. docs/pipeline.md explains the method.
"""

from typing import TYPE_CHECKING

from zeus_core._lazy_names import imported_on_use as _imported_on_use

if TYPE_CHECKING:
    from zeus_core.pipeline import baselines, schedules
    from zeus_core.pipeline.pipeline_observer import PipelineObserver
    from zeus_core.pipeline.planner.clock_options import MeasuredOption
    from zeus_core.pipeline.planner.clock_plan import Plan, read_plan, write_plan
    from zeus_core.pipeline.planner.frontier.frontier import Frontier
    from zeus_core.pipeline.planner.pipeline_problem import Problem
    from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile, PipelineProfile
    from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS, TRANSFER_KINDS, Instruction, Schedule
    from zeus_core.pipeline.planner.plan_making import make_plan

__all__ = [
    "COMPUTE_KINDS",
    "TRANSFER_KINDS",
    "Frontier",
    "Instruction",
    "InstructionProfile",
    "MeasuredOption",
    "PipelineObserver",
    "PipelineProfile",
    "Plan",
    "Problem",
    "Schedule",
    "baselines",
    "make_plan",
    "read_plan",
    "schedules",
    "write_plan",
]

_PLANNER = "zeus_core.pipeline.planner"
_MODULES = {
    "baselines": "zeus_core.pipeline.baselines",
    "schedules": "zeus_core.pipeline.schedules",
    "COMPUTE_KINDS": f"{_PLANNER}.pipeline_schedule",
    "TRANSFER_KINDS": f"{_PLANNER}.pipeline_schedule",
    "Frontier": f"{_PLANNER}.frontier.frontier",
    "Instruction": f"{_PLANNER}.pipeline_schedule",
    "InstructionProfile": f"{_PLANNER}.pipeline_profile",
    "MeasuredOption": f"{_PLANNER}.clock_options",
    "PipelineObserver": "zeus_core.pipeline.pipeline_observer",
    "PipelineProfile": f"{_PLANNER}.pipeline_profile",
    "Plan": f"{_PLANNER}.clock_plan",
    "Problem": f"{_PLANNER}.pipeline_problem",
    "Schedule": f"{_PLANNER}.pipeline_schedule",
    "make_plan": f"{_PLANNER}.plan_making",
    "read_plan": f"{_PLANNER}.clock_plan",
    "write_plan": f"{_PLANNER}.clock_plan",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = _imported_on_use(__name__, _MODULES)
