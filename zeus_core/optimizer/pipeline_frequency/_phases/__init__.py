"""The phases of planning a pipeline's clocks during training.

The original clocks are those the GPUs ran at before. In the order of a run:

- RESTING changes nothing. The first step leads to WARMING UP.
- WARMING UP lets steps pass and records what the ranks run. Then the ranks introduce themselves to each other.
- BASELINE measures iterations at the original clocks, which plans are compared with.
- PROFILING measures all instructions at one clock after another. What an earlier run has measured is not measured
  again. Without permission to set clocks it measures at the original clocks only, and ends in OBSERVED.
- PLANNING continues at the original clocks while rank 0 plans in the background.
- REPLAYING sets the clock of each instruction. A plan that is too slow leads back to BASELINE, to see whether the plan
  is at fault: if so, it is replaced by a faster one, and after several of these planning ends in OFF. Steps that no
  longer match the plan lead back to WARMING UP; the profile is kept if the instructions are of the same kinds.
- The end of training leads to RESTING. A fault, at any time, ends planning for good: OFF.

Each phase receives steps and instructions, and creates the next phase at the end of a step; `course` decides which. All
ranks go through the phases together: each transition depends on values that were exchanged, and all judge these alike.
"""

from zeus_core.optimizer.pipeline_frequency._phases.course import Course
from zeus_core.optimizer.pipeline_frequency._phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency._phases.replaying import Replaying
from zeus_core.optimizer.pipeline_frequency._phases.resting import Resting

__all__ = ["Course", "Phase", "PhaseName", "Replaying", "Resting"]
