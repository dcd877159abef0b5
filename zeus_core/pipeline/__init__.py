"""Clocks of a training pipeline (Perseus, SOSP'24): from measured profiles to every optimal plan, and in training.

    from zeus_core.pipeline import Frontier, PipelineProfile, make_plan, schedules, write_plan

    profile = PipelineProfile.from_csv("profile.csv", blocking_power_watts=83.6)
    frontier = Frontier.from_profile(profile, schedules.one_f_one_b(stages=8, microbatches=96))
    frontier.times_seconds, frontier.energies_joules   # every breakpoint, exactly
    plan = make_plan(frontier, slowdown_factor=1.0)    # or time_seconds=, straggler_seconds=; switch_seconds=0.005
    write_plan(plan, "plan.json")

Planning is pure: no device, no time source, no framework. LLVM (llvmlite, extra `pipeline`) compiles the loops; without
it they are slower and give the same. docs/pipeline.md explains the method.
`PipelineFrequencyOptimizer` does all of it during training.
"""

from typing import TYPE_CHECKING

from zeus_core._lazy_names import imported_on_use as _imported_on_use
from zeus_core.pipeline import schedules

if TYPE_CHECKING:
    from zeus_core.pipeline.optimizer import PipelineFrequencyOptimizer, PipelineFrequencySettings, PipelineRank
    from zeus_core.pipeline.planner.clock_plan import write_plan
    from zeus_core.pipeline.planner.frontier.frontier import Frontier
    from zeus_core.pipeline.planner.pipeline_profile import PipelineProfile
    from zeus_core.pipeline.planner.plan_making import make_plan

__all__ = [
    "Frontier",
    "PipelineFrequencyOptimizer",
    "PipelineFrequencySettings",
    "PipelineProfile",
    "PipelineRank",
    "make_plan",
    "schedules",
    "write_plan",
]

_OPTIMIZER = "zeus_core.pipeline.optimizer"
_HOMES = {
    "Frontier": "zeus_core.pipeline.planner.frontier.frontier",
    "PipelineFrequencyOptimizer": _OPTIMIZER,
    "PipelineFrequencySettings": _OPTIMIZER,
    "PipelineRank": _OPTIMIZER,
    "PipelineProfile": "zeus_core.pipeline.planner.pipeline_profile",
    "make_plan": "zeus_core.pipeline.planner.plan_making",
    "write_plan": "zeus_core.pipeline.planner.clock_plan",
}

if not TYPE_CHECKING:  # the command is declared for each help, which needs none of these
    __getattr__, __dir__ = _imported_on_use(__name__, _HOMES)
