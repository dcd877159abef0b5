"""The phases of a search for a setting: two tables and one pure function.

Rules, in the order of a run:

- REST changes nothing. The first sign of training leads to PREPARE.
- PREPARE reads the original settings and asks the search. Earlier trials are not made again.
- WAIT lets the first steps of training pass.
- WARM_UP sets the setting that was asked for, and lets steps pass until the GPU has settled at it.
- MEASURE measures a block of steps at it.
- CONCLUDE reports the block to the search, which asks for another one. A block whose energy was lost is repeated, and
  after some tries at the original setting; a setting that a board does not enforce is tried no more, and its block
  does not begin.
- Once the search is over, SETTLE sets its choice, and lets steps pass as WARM_UP does. CONFIRM measures a block at it.
- DONE is the rest of training at the choice. It is measured as well, block after block, and reported to the search,
  which may then move its choice a little, or search again. A search that cannot do that measures nothing more.
- PREPARE and CONCLUDE last until an observer beside the search has decided, if there is one.
- The end of training leads back to REST, which restores the original settings.
- A fault, at any time, leads to OFF, which is REST for good.

The window of a phase that measures (MEASURE, CONFIRM, DONE) has a table of its own:

- The phase opens it. A pause of training SUSPENDs it and keeps what was measured. Interference (work that got into the
  window unannounced) SPOILs it, and the steps since it was opened are measured again. The next step opens another one.
- Several ranks go through the phases together, each by its own count of the same steps. So none of them SPOILs steps
  that the others have counted: a block with interference counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from zeus_core.events import (
    EpochBegin,
    EpochEnd,
    Event,
    Interference,
    Pause,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from zeus_core.optimizer.phase_table import PhaseTable


class Phase(Enum):
    """The phases, by name."""

    if not TYPE_CHECKING:  # that of an enum calls a function in Python, at each look into a table
        __hash__ = object.__hash__

    REST = "rest"
    PREPARE = "prepare"
    WAIT = "wait"
    WARM_UP = "warm-up"
    MEASURE = "measure"
    CONCLUDE = "conclude"
    SETTLE = "settle"
    CONFIRM = "confirm"
    DONE = "done"
    OFF = "off"


class WindowState(Enum):
    """The states of the window of a phase, by name."""

    if not TYPE_CHECKING:  # that of an enum calls a function in Python, at each look into a table
        __hash__ = object.__hash__

    CLOSED = "closed"
    OPEN = "open"
    SUSPENDED = "suspended"
    SPOILED = "spoiled"


MEASURED = frozenset({Phase.MEASURE, Phase.CONFIRM, Phase.DONE})
STEP_BOUNDARIES: frozenset[type[Event] | PhaseEnd] = frozenset({StepBegin, StepEnd})


class PhaseEnd(Enum):
    """The outcome of entering a phase, or of its steps."""

    ASKED = "the search asks for a block"
    CHOSEN = "the search has chosen"
    HELD = "the choice holds"
    SPENT = "the steps are over"
    REFUSED = "a board does not enforce the setting"
    LOWERED = "somebody else has lowered the limit"
    FAULT = "something failed"
    MEASURED = "a phase that measures begins"
    LEFT = "another phase begins"


_TRANSITIONS: dict[tuple[Phase, type[Event] | PhaseEnd], Phase] = {
    (Phase.REST, TrainBegin): Phase.PREPARE,
    (Phase.REST, EpochBegin): Phase.PREPARE,
    (Phase.REST, StepBegin): Phase.PREPARE,
    (Phase.PREPARE, PhaseEnd.ASKED): Phase.WAIT,
    (Phase.PREPARE, PhaseEnd.CHOSEN): Phase.SETTLE,
    (Phase.WAIT, PhaseEnd.SPENT): Phase.WARM_UP,
    (Phase.WARM_UP, PhaseEnd.SPENT): Phase.MEASURE,
    (Phase.WARM_UP, PhaseEnd.REFUSED): Phase.CONCLUDE,
    (Phase.SETTLE, PhaseEnd.REFUSED): Phase.CONCLUDE,
    (Phase.DONE, PhaseEnd.REFUSED): Phase.CONCLUDE,
    (Phase.MEASURE, PhaseEnd.SPENT): Phase.CONCLUDE,
    (Phase.CONCLUDE, PhaseEnd.ASKED): Phase.WARM_UP,
    (Phase.CONCLUDE, PhaseEnd.CHOSEN): Phase.SETTLE,
    (Phase.CONCLUDE, PhaseEnd.LOWERED): Phase.PREPARE,
    (Phase.SETTLE, PhaseEnd.SPENT): Phase.CONFIRM,
    (Phase.CONFIRM, PhaseEnd.SPENT): Phase.CONCLUDE,
    (Phase.CONCLUDE, PhaseEnd.HELD): Phase.DONE,
    (Phase.DONE, PhaseEnd.SPENT): Phase.CONCLUDE,
}

PHASES: PhaseTable[Phase, type[Event] | PhaseEnd] = PhaseTable(
    first=Phase.REST,
    last=Phase.OFF,
    transitions=_TRANSITIONS,
    from_every_phase={TrainEnd: Phase.REST, PhaseEnd.FAULT: Phase.OFF},
)
"""The table of the phases."""

WINDOWS: PhaseTable[WindowState, type[Event] | PhaseEnd] = PhaseTable(
    first=WindowState.CLOSED,
    last=None,
    transitions={
        (WindowState.OPEN, Pause): WindowState.SUSPENDED,
        (WindowState.OPEN, EpochEnd): WindowState.SUSPENDED,
        (WindowState.OPEN, Interference): WindowState.SPOILED,
        (WindowState.SUSPENDED, StepBegin): WindowState.OPEN,
        (WindowState.SPOILED, StepBegin): WindowState.OPEN,
    },
    from_every_phase={PhaseEnd.MEASURED: WindowState.OPEN, PhaseEnd.LEFT: WindowState.CLOSED},
)
"""The table of the window."""

_COUNTED = frozenset({Phase.WAIT, Phase.WARM_UP, Phase.SETTLE, *MEASURED})
_INTERRUPTED = frozenset({WindowState.SUSPENDED, WindowState.SPOILED})


class State(NamedTuple):
    """A phase and its progress.

    Attributes:
        phase: The phase.
        steps_left: Steps until it is over.
        window: Its window.
        segment_steps: Steps since the window was opened.
    """

    phase: Phase = Phase.REST
    steps_left: int = 0
    window: WindowState = WindowState.CLOSED
    segment_steps: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether the phase lasts a number of steps, all of which are over. Without a window, DONE lasts for ever."""
        is_endless = self.phase is Phase.DONE and self.window is WindowState.CLOSED
        return self.phase in _COUNTED and self.steps_left <= 0 and not is_endless


def advance(state: State, happening: type[Event] | PhaseEnd, steps_of: Callable[[Phase], int]) -> State:
    """Return the state after something has happened.

    A phase that lasts a number of steps is over at the end of the last of them, as if `SPENT` had happened. A phase of
    no steps is over at the next beginning of a step. If the beginning or end of a step led to it, it is over at once:
    the optimizer reports `SPENT` after the effects of entering it.

    Args:
        state: The state before.
        happening: The class of an event, or an outcome.
        steps_of: Returns the steps that a phase lasts; 0 for a phase that something else ends.
    """
    if happening in STEP_BOUNDARIES and state.phase in _COUNTED:
        if state.phase is Phase.DONE and state.window is WindowState.CLOSED:
            return state
        is_interrupted = state.window in _INTERRUPTED
        if happening is StepEnd and not is_interrupted:
            state = State(state.phase, state.steps_left - 1, state.window, state.segment_steps + 1)
        if state.steps_left <= 0 and state.is_spent:
            happening = PhaseEnd.SPENT
        elif not is_interrupted:
            return state  # as after most steps: no row of a table is for it
    phase = PHASES.next(state.phase, happening)
    if phase is not state.phase:
        steps = steps_of(phase)
        is_measured = phase in MEASURED and steps > 0
        return State(phase, steps, WINDOWS.next(state.window, PhaseEnd.MEASURED if is_measured else PhaseEnd.LEFT))
    window = WINDOWS.next(state.window, happening)
    if window is state.window:
        return state
    again = state.segment_steps if window is WindowState.SPOILED else 0
    return State(phase, state.steps_left + again, window)
