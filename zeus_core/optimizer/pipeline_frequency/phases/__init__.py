"""The phases of planning a pipeline's clocks while it trains.

Rules, in the order of a run:

- RESTING touches nothing. The first step leads to WARMING UP.
- WARMING UP lets steps pass and learns what the ranks run. They introduce themselves to each other.
- BASELINE measures iterations at the clocks found: what a plan is held against.
- PROFILING measures all instructions at one clock after the other. What an earlier run has measured is not measured
  again. Without the right to set clocks it measures at the clock found, and rests: OBSERVED.
- PLANNING goes on at the clocks found while rank 0 plans in the background.
- REPLAYING sets the clock of every instruction. A plan that is too slow leads back to BASELINE, to see whether the
  plan is at fault: if so, the next one is quicker. What the ranks run having changed leads back to WARMING UP, and what
  is known of the instructions stays.
- The end of training leads to RESTING. A fault, at any time, leads there for good: OFF.

Each phase is told of steps and instructions, and makes the one after it at the end of a step; which that is, `course`
says. All ranks go through the phases together: what leads from one to the next is exchanged, and judged by all alike.
"""

from zeus_core.optimizer.pipeline_frequency.phases.course import Course
from zeus_core.optimizer.pipeline_frequency.phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency.phases.replaying import Replaying
from zeus_core.optimizer.pipeline_frequency.phases.resting import Resting

__all__ = ["Course", "Phase", "PhaseName", "Replaying", "Resting"]
