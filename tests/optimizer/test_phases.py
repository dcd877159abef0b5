"""The tables of the phases and `advance`, without any effects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import EVENTS
from tests.support.reachable_phases import reachable
from zeus_core.events import EpochBegin, EpochEnd, Interference, Pause, StepBegin, StepEnd, TrainBegin, TrainEnd
from zeus_core.optimizer.global_setting.phases import (
    MEASURED,
    PHASES,
    WINDOWS,
    Phase,
    PhaseEnd,
    State,
    WindowState,
    advance,
)

COUNTS = {Phase.WAIT: 1, Phase.WARM_UP: 2, Phase.SETTLE: 2, **dict.fromkeys(MEASURED, 4)}
UNMEASURED = {**COUNTS, **dict.fromkeys(MEASURED, 0)}
STEP = [StepBegin, StepEnd]


def after(happenings, state=None, counts=COUNTS):
    state = state or State()
    for happening in happenings:
        state = advance(state, happening, lambda phase: counts.get(phase, 0))
    return state


def measuring(steps_done=0):
    return after([TrainBegin, PhaseEnd.ASKED, *STEP * (1 + 2 + steps_done)])


def confirming(steps_done=0):
    return after(STEP * (2 + steps_done), SETTLING)


def done(steps_done=0):
    return after([PhaseEnd.HELD, *STEP * steps_done], confirming(4))


def test_a_run_without_pauses():
    assert after([TrainBegin]).phase is Phase.PREPARE
    assert after([TrainBegin, PhaseEnd.ASKED]).phase is Phase.WAIT
    assert after([TrainBegin, PhaseEnd.ASKED, *STEP]).phase is Phase.WARM_UP
    assert measuring() == State(Phase.MEASURE, 4, WindowState.OPEN)
    assert measuring(3).phase is Phase.MEASURE
    concluding = measuring(4)
    assert concluding == State(Phase.CONCLUDE)
    assert after([PhaseEnd.ASKED], concluding) == State(Phase.WARM_UP, steps_left=2)
    assert after([PhaseEnd.CHOSEN], concluding) == State(Phase.SETTLE, steps_left=2) == SETTLING
    assert after(STEP * 2, SETTLING) == State(Phase.CONFIRM, 4, WindowState.OPEN)
    assert confirming(4) == State(Phase.CONCLUDE)


def test_training_at_the_choice_is_measured_block_after_block():
    assert done() == State(Phase.DONE, 4, WindowState.OPEN)
    assert done(4) == State(Phase.CONCLUDE)
    assert after([PhaseEnd.HELD], done(4)) == done()
    assert after([PhaseEnd.ASKED], done(4)).phase is Phase.WARM_UP


def test_a_search_that_is_over_for_good_measures_nothing_more():
    unmeasured = after([PhaseEnd.HELD], confirming(4), UNMEASURED)
    assert unmeasured.window is WindowState.CLOSED
    assert after(STEP * 10, unmeasured, UNMEASURED).phase is Phase.DONE


def test_what_is_known_already_is_not_measured_again():
    assert after([TrainBegin, PhaseEnd.CHOSEN]).phase is Phase.SETTLE


SETTLING = after([PhaseEnd.CHOSEN], measuring(4))
MEASURING = pytest.mark.parametrize("measuring", [measuring, confirming, done])


@MEASURING
@pytest.mark.parametrize("pause", [Pause, EpochEnd])
def test_a_pause_keeps_what_was_measured(measuring, pause):
    suspended = after([pause], measuring(3))
    assert suspended == State(measuring().phase, 1, WindowState.SUSPENDED)
    assert after([Interference, EpochEnd, EpochBegin], suspended) == suspended
    assert after(STEP, suspended).phase is Phase.CONCLUDE


@MEASURING
def test_interference_has_the_steps_since_the_window_was_opened_measured_again(measuring):
    suspended_after_one = after([Pause], measuring(1))
    two_more = after(STEP * 2, suspended_after_one)
    spoiled = after([Interference], two_more)
    assert spoiled == State(measuring().phase, 3, WindowState.SPOILED)
    assert after([StepEnd], spoiled) == spoiled, "the rest of a step that was interrupted is no step"
    assert after(STEP * 2, spoiled).phase is measuring().phase
    assert after(STEP * 3, spoiled).phase is Phase.CONCLUDE


def test_pauses_outside_of_measuring_change_nothing():
    warming_up = after([TrainBegin, PhaseEnd.ASKED, *STEP])
    assert after([Pause, EpochEnd, EpochBegin, Interference], warming_up) == warming_up


@MEASURING
def test_a_block_may_end_early(measuring):
    assert after([PhaseEnd.SPENT], measuring(2)) == State(Phase.CONCLUDE)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.OFF])
def test_the_end_of_training_leads_to_rest_from_everywhere(phase):
    assert after([TrainEnd], State(phase, 3)).phase is Phase.REST


@pytest.mark.parametrize("phase", Phase)
def test_a_fault_leads_to_off_from_everywhere(phase):
    assert after([PhaseEnd.FAULT], State(phase, 3)).phase is Phase.OFF


HAPPENINGS = [
    *EVENTS,
    *(outcome for outcome in PhaseEnd if outcome not in {PhaseEnd.MEASURED, PhaseEnd.LEFT}),
]


@given(st.lists(st.sampled_from(HAPPENINGS)))
def test_off_is_for_good(happenings):
    assert after(happenings, State(Phase.OFF)).phase is Phase.OFF


@given(st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.sampled_from([COUNTS, UNMEASURED])), max_size=200))
def test_in_any_order_windows_open_only_while_measuring_and_steps_stay_bounded(happenings):
    state = State()
    for happening, counts in happenings:
        state = after([happening], state, counts)
        assert 0 <= state.steps_left <= 4 or state.window is WindowState.CLOSED
        assert 0 <= state.segment_steps <= 4 or state.window is WindowState.CLOSED
        assert state.window is WindowState.CLOSED or state.phase in MEASURED


def test_every_phase_and_every_state_of_a_window_can_be_reached():
    assert reachable(PHASES) == set(Phase)
    assert reachable(WINDOWS) == set(WindowState)
