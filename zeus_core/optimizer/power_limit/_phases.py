"""The phases of a search for a power limit: one table and one pure function.

Rules, in the order of a run:

- REST changes nothing. The first sign of training leads to PREPARE.
- PREPARE reads the original limits and asks the search. A limit that was measured before is not measured again.
- WAIT lets the first steps of training pass.
- WARM_UP sets the limit that was asked for, and lets steps pass until the GPU has settled at it: once per limit.
- MEASURE opens a window. A pause of training SUSPENDs it and keeps what was measured. Interference (work that got into
  the window unannounced) SPOILs it, and the steps since it was opened are measured again. The next step opens a new
  window.
- CONCLUDE tells the search, and it asks for another limit. A trial whose energy was lost is repeated.
- CHOOSE has the best limit chosen, once the search knows enough. SETTLE sets it, and lets steps pass as WARM_UP does.
- CONFIRM measures the chosen limit once more, to know the saving: it is MEASURE for this limit, and may be interrupted
  like it. VERIFY concludes it. Then the search is DONE, and training continues at the chosen limit.
- The end of training leads back to REST, which restores the original limits.
- A fault, at any time, leads to OFF, which is REST for good.
- Several ranks go through the phases together, each by its own count of the same steps. So none of them SPOILs steps
  that the others have counted: a trial with interference counts as lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from zeus_core._validate import checked_whole_number
from zeus_core.events import Event
from zeus_core.optimizer._phase_table import PhaseTable

__all__ = [
    "MEASURING",
    "PHASES",
    "SPOILED",
    "STEP_BOUNDARIES",
    "SUSPENDED",
    "Outcome",
    "Phase",
    "State",
    "StepCounts",
    "advance",
    "remaining_steps",
]


class Phase(Enum):
    """The phases, by name."""

    REST = "rest"
    PREPARE = "prepare"
    WAIT = "wait"
    WARM_UP = "warm-up"
    MEASURE = "measure"
    SUSPEND = "suspend"
    SPOIL = "spoil"
    CONCLUDE = "conclude"
    CHOOSE = "choose"
    SETTLE = "settle"
    CONFIRM = "confirm"
    SUSPEND_CONFIRM = "suspend confirm"
    SPOIL_CONFIRM = "spoil confirm"
    VERIFY = "verify"
    DONE = "done"
    OFF = "off"


MEASURING = frozenset({Phase.MEASURE, Phase.CONFIRM})
SUSPENDED = frozenset({Phase.SUSPEND, Phase.SUSPEND_CONFIRM})
SPOILED = frozenset({Phase.SPOIL, Phase.SPOIL_CONFIRM})
STEP_BOUNDARIES = frozenset({Event.STEP_BEGIN, Event.STEP_END})


class Outcome(Enum):
    """The outcome of entering a phase, or of its steps."""

    ASKED = "the search asks for a limit"
    KNOWN = "the search knows enough"
    CHOSEN = "a limit is chosen"
    CONFIRMED = "the chosen limit was measured"
    LOST = "the trial cannot be used"
    SPENT = "the steps are over"
    FAULT = "something failed"


_Transitions = dict[tuple[Phase, Event | Outcome], Phase]


def _interruptions(measure: Phase, suspend: Phase, spoil: Phase) -> _Transitions:
    return {
        (measure, Event.PAUSE): suspend,
        (measure, Event.EPOCH_END): suspend,
        (measure, Event.INTERFERENCE): spoil,
        (suspend, Event.STEP_BEGIN): measure,
        (spoil, Event.STEP_BEGIN): measure,
    }


_TRANSITIONS: _Transitions = {
    (Phase.REST, Event.TRAIN_BEGIN): Phase.PREPARE,
    (Phase.REST, Event.EPOCH_BEGIN): Phase.PREPARE,
    (Phase.REST, Event.STEP_BEGIN): Phase.PREPARE,
    (Phase.PREPARE, Outcome.ASKED): Phase.WAIT,
    (Phase.PREPARE, Outcome.KNOWN): Phase.CHOOSE,
    (Phase.WAIT, Outcome.SPENT): Phase.WARM_UP,
    (Phase.WARM_UP, Outcome.SPENT): Phase.MEASURE,
    (Phase.MEASURE, Outcome.SPENT): Phase.CONCLUDE,
    **_interruptions(Phase.MEASURE, Phase.SUSPEND, Phase.SPOIL),
    (Phase.CONCLUDE, Outcome.ASKED): Phase.WARM_UP,
    (Phase.CONCLUDE, Outcome.LOST): Phase.WARM_UP,
    (Phase.CONCLUDE, Outcome.KNOWN): Phase.CHOOSE,
    (Phase.CHOOSE, Outcome.CHOSEN): Phase.SETTLE,
    (Phase.SETTLE, Outcome.SPENT): Phase.CONFIRM,
    (Phase.CONFIRM, Outcome.SPENT): Phase.VERIFY,
    **_interruptions(Phase.CONFIRM, Phase.SUSPEND_CONFIRM, Phase.SPOIL_CONFIRM),
    (Phase.VERIFY, Outcome.LOST): Phase.SETTLE,
    (Phase.VERIFY, Outcome.CONFIRMED): Phase.DONE,
}

PHASES: PhaseTable[Phase, Event | Outcome] = PhaseTable(
    first=Phase.REST,
    last=Phase.OFF,
    transitions=_TRANSITIONS,
    from_every_phase={Event.TRAIN_END: Phase.REST, Outcome.FAULT: Phase.OFF},
)
"""The table of the phases."""

_COUNTED = frozenset({Phase.WAIT, Phase.WARM_UP, Phase.SETTLE, *MEASURING})


@dataclass(frozen=True)
class StepCounts:
    """The number of training steps that each phase lasts.

    Raises:
        UsageError: A count is not a whole number, or below its minimum.
    """

    wait_steps: int
    warmup_steps: int
    profile_steps: int

    def __post_init__(self) -> None:
        """Check the counts."""
        for argument, minimum in (("wait_steps", 0), ("warmup_steps", 0), ("profile_steps", 1)):
            object.__setattr__(self, argument, checked_whole_number(argument, getattr(self, argument), minimum))

    def of(self, phase: Phase) -> int:
        """Return the steps a phase lasts; 0 for a phase that something else ends."""
        return {
            Phase.WAIT: self.wait_steps,
            Phase.WARM_UP: self.warmup_steps,
            Phase.SETTLE: self.warmup_steps,
            Phase.MEASURE: self.profile_steps,
            Phase.CONFIRM: self.profile_steps,
        }.get(phase, 0)


@dataclass(frozen=True)
class State:
    """A phase and its progress.

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
    """Return the state after something has happened.

    A phase that lasts a number of steps is over at the end of the last of them, as if `SPENT` had happened. A phase of
    no steps is over at the next beginning of a step. If the beginning or end of a step led to it, it is over at once:
    the optimizer reports `SPENT` after the effects of entering it.
    """
    if happening is Event.STEP_END and state.phase in _COUNTED:
        state = replace(state, steps_left=state.steps_left - 1, segment_steps=state.segment_steps + 1)
    if state.is_spent and happening in STEP_BOUNDARIES:
        happening = Outcome.SPENT
    next_phase = PHASES.next(state.phase, happening)
    if next_phase is state.phase:
        return state
    if next_phase in SUSPENDED:
        return State(next_phase, state.steps_left)
    if next_phase in SPOILED:
        return State(next_phase, state.steps_left + state.segment_steps)
    if state.phase in SUSPENDED | SPOILED and next_phase in MEASURING:
        return State(next_phase, state.steps_left)
    return State(next_phase, counts.of(next_phase))


def remaining_steps(state: State, counts: StepCounts, untried: int) -> int:
    """Return the least number of steps until the search is DONE.

    Args:
        state: The state.
        counts: The number of steps that each phase lasts.
        untried: The number of limits without a trial.
    """
    trial_steps = counts.warmup_steps + counts.profile_steps
    match state.phase:
        case Phase.WAIT:
            after = (untried + 1) * trial_steps
        case Phase.WARM_UP:
            after = counts.profile_steps + untried * trial_steps
        case Phase.MEASURE | Phase.SUSPEND | Phase.SPOIL:
            after = untried * trial_steps
        case Phase.SETTLE:
            after = counts.profile_steps
        case _:
            after = 0
    return state.steps_left + after
