"""The phases of a power-limit search: one table and one pure function. Effects are the optimizer's business.

Rules, in the order of a run:

- REST touches nothing. The first sign of training leads to PREPARE.
- PREPARE reads the limits found and asks the search. What is known already is not measured again.
- WAIT lets the first steps of training pass.
- WARM_UP has the asked limit set, and lets steps pass until the GPU has settled at it: once per limit.
- MEASURE has a window open. A pause of training SUSPENDs it, keeping what was measured; work that got into the window
  unannounced SPOILs it, and the steps since it was opened are measured again. The next step opens a new window.
- CONCLUDE tells the search, and it asks for another limit. A trial whose energy was lost is repeated.
- When the search knows enough, the best limit is chosen and training SETTLEs at it. It is measured once more, by way of
  MEASURE and CONCLUDE, to confirm what was gained; then the search is DONE and training goes on at the chosen limit.
- The end of training leads back to REST, where the limits are as they were found.
- A fault, at any time, leads to OFF, which is REST for good.
- Several ranks go through the phases together, each by its own count of the same steps. So none of them SPOILs steps
  that the others have counted: a trial that something got into is as good as lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from zeus_core._validate import checked_whole_number
from zeus_core.events import Event
from zeus_core.optimizer._phase_table import PhaseTable

__all__ = ["PHASES", "STEP_BOUNDARIES", "Outcome", "Phase", "State", "StepCounts", "advance"]


class Phase(Enum):
    """Where a search stands."""

    REST = "rest"
    PREPARE = "prepare"
    WAIT = "wait"
    WARM_UP = "warm-up"
    MEASURE = "measure"
    SUSPEND = "suspend"
    SPOIL = "spoil"
    CONCLUDE = "conclude"
    SETTLE = "settle"
    DONE = "done"
    OFF = "off"


class Outcome(Enum):
    """What happened on entering a phase, or to its steps."""

    ASKED = "the search asks for a limit"
    CHOSEN = "the best limit is known"
    CONFIRMED = "the chosen limit was measured once more"
    LOST = "the trial cannot be used"
    SPENT = "the steps of the phase are over"
    FAULT = "something failed"


_TRANSITIONS: dict[tuple[Phase, Event | Outcome], Phase] = {
    (Phase.REST, Event.TRAIN_BEGIN): Phase.PREPARE,
    (Phase.REST, Event.EPOCH_BEGIN): Phase.PREPARE,
    (Phase.REST, Event.STEP_BEGIN): Phase.PREPARE,
    (Phase.PREPARE, Outcome.ASKED): Phase.WAIT,
    (Phase.PREPARE, Outcome.CHOSEN): Phase.SETTLE,
    (Phase.WAIT, Outcome.SPENT): Phase.WARM_UP,
    (Phase.WARM_UP, Outcome.SPENT): Phase.MEASURE,
    (Phase.MEASURE, Outcome.SPENT): Phase.CONCLUDE,
    (Phase.MEASURE, Event.PAUSE): Phase.SUSPEND,
    (Phase.MEASURE, Event.EPOCH_END): Phase.SUSPEND,
    (Phase.MEASURE, Event.INTERFERENCE): Phase.SPOIL,
    (Phase.SUSPEND, Event.STEP_BEGIN): Phase.MEASURE,
    (Phase.SPOIL, Event.STEP_BEGIN): Phase.MEASURE,
    (Phase.CONCLUDE, Outcome.ASKED): Phase.WARM_UP,
    (Phase.CONCLUDE, Outcome.CHOSEN): Phase.SETTLE,
    (Phase.CONCLUDE, Outcome.LOST): Phase.WARM_UP,
    (Phase.SETTLE, Outcome.SPENT): Phase.MEASURE,
    (Phase.CONCLUDE, Outcome.CONFIRMED): Phase.DONE,
}

PHASES: PhaseTable[Phase, Event | Outcome] = PhaseTable(
    first=Phase.REST,
    last=Phase.OFF,
    transitions=_TRANSITIONS,
    from_every_phase={Event.TRAIN_END: Phase.REST, Outcome.FAULT: Phase.OFF},
)
"""The table of the phases."""

STEP_BOUNDARIES = frozenset({Event.STEP_BEGIN, Event.STEP_END})

_COUNTED = frozenset({Phase.WAIT, Phase.WARM_UP, Phase.MEASURE, Phase.SETTLE})


@dataclass(frozen=True)
class StepCounts:
    """How many training steps each phase lasts.

    Raises:
        UsageError: A count is not a whole number, or below its least.
    """

    wait_steps: int
    warmup_steps: int
    profile_steps: int

    def __post_init__(self) -> None:
        """Check the counts."""
        for argument, least in (("wait_steps", 0), ("warmup_steps", 0), ("profile_steps", 1)):
            object.__setattr__(self, argument, checked_whole_number(argument, getattr(self, argument), least))

    def of(self, phase: Phase) -> int:
        """Steps a phase lasts; 0 for a phase that something else ends."""
        return {
            Phase.WAIT: self.wait_steps,
            Phase.WARM_UP: self.warmup_steps,
            Phase.SETTLE: self.warmup_steps,
            Phase.MEASURE: self.profile_steps,
        }.get(phase, 0)


@dataclass(frozen=True)
class State:
    """A phase and how far it has come.

    Attributes:
        phase: The phase.
        steps_left: Steps until it is over, or until the measurement it interrupts is.
        segment_steps: Steps since the phase was entered.
    """

    phase: Phase = Phase.REST
    steps_left: int = 0
    segment_steps: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether the phase lasts a number of steps, all of which are over."""
        return self.phase in _COUNTED and self.steps_left <= 0


def advance(state: State, happening: Event | Outcome, counts: StepCounts) -> State:
    """The state after something has happened.

    A phase that lasts a number of steps is over at the end of the last of them, as if `SPENT` had happened. One of no
    steps is over at the next beginning of a step; or at once if a step's beginning or end led to it, which is for the
    optimizer to report after the effects of entering it.
    """
    if happening is Event.STEP_END and state.phase in _COUNTED:
        state = replace(state, steps_left=state.steps_left - 1, segment_steps=state.segment_steps + 1)
    if happening in STEP_BOUNDARIES and state.is_spent:
        happening = Outcome.SPENT
    next_phase = PHASES.next(state.phase, happening)
    if next_phase is state.phase:
        return state
    if next_phase is Phase.SUSPEND:
        return State(next_phase, state.steps_left)
    if next_phase is Phase.SPOIL:
        return State(next_phase, state.steps_left + state.segment_steps)
    if next_phase is Phase.MEASURE and state.phase in {Phase.SUSPEND, Phase.SPOIL}:
        return State(next_phase, state.steps_left)
    return State(next_phase, counts.of(next_phase))
