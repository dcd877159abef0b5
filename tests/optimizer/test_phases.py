"""The phase table and `advance`, without any effects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.events import Event
from zeus_core.optimizer.power_limit._phases import PHASES, Outcome, Phase, State, StepCounts, advance, remaining_steps

COUNTS = StepCounts(wait_steps=1, warmup_steps=2, profile_steps=4)
STEP = [Event.STEP_BEGIN, Event.STEP_END]


def after(happenings, state=None, counts=COUNTS):
    state = state or State()
    for happening in happenings:
        state = advance(state, happening, counts)
    return state


def measuring(steps_done=0):
    return after([Event.TRAIN_BEGIN, Outcome.ASKED, *STEP * (1 + 2 + steps_done)])


def test_a_run_without_pauses():
    assert after([Event.TRAIN_BEGIN]).phase is Phase.PREPARE
    assert after([Event.TRAIN_BEGIN, Outcome.ASKED]).phase is Phase.WAIT
    assert after([Event.TRAIN_BEGIN, Outcome.ASKED, *STEP]).phase is Phase.WARM_UP
    assert measuring().phase is Phase.MEASURE
    assert measuring(3).phase is Phase.MEASURE
    concluding = measuring(4)
    assert concluding == State(Phase.CONCLUDE)
    assert after([Outcome.ASKED], concluding) == State(Phase.WARM_UP, steps_left=2)
    assert after([Outcome.KNOWN], concluding) == State(Phase.CHOOSE)
    assert State(Phase.SETTLE, steps_left=2) == SETTLING
    assert after(STEP * 2, SETTLING) == State(Phase.CONFIRM, steps_left=4)
    verifying = after(STEP * (2 + 4), SETTLING)
    assert verifying == State(Phase.VERIFY)
    assert after([Outcome.LOST], verifying) == SETTLING
    assert after([Outcome.CONFIRMED], verifying).phase is Phase.DONE


def test_what_is_known_already_is_not_measured_again():
    assert after([Event.TRAIN_BEGIN, Outcome.KNOWN]).phase is Phase.CHOOSE


SETTLING = after([Outcome.KNOWN, Outcome.CHOSEN], measuring(4))


def confirming(steps_done=0):
    return after(STEP * (2 + steps_done), SETTLING)


def test_the_steps_that_remain_are_those_that_follow():
    """The last trial confirms the choice. The limit under way counts as untried."""
    state, untried = after([Event.TRAIN_BEGIN, Outcome.ASKED]), 3
    for left in range(1 + (3 + 1) * (2 + 4), 0, -1):
        assert remaining_steps(state, COUNTS, untried) == left
        state = after(STEP, state)
        if state.phase is Phase.CONCLUDE:
            untried -= 1
            state = after([Outcome.ASKED] if untried else [Outcome.KNOWN, Outcome.CHOSEN], state)
    assert (state.phase, remaining_steps(state, COUNTS, 0)) == (Phase.VERIFY, 0)


TWICE = pytest.mark.parametrize(
    ("measuring", "suspend", "spoil", "conclude"),
    [
        (measuring, Phase.SUSPEND, Phase.SPOIL, Phase.CONCLUDE),
        (confirming, Phase.SUSPEND_CONFIRM, Phase.SPOIL_CONFIRM, Phase.VERIFY),
    ],
    ids=["trial", "confirmation"],
)


@TWICE
@pytest.mark.parametrize("pause", [Event.PAUSE, Event.EPOCH_END])
def test_a_pause_keeps_what_was_measured(measuring, suspend, spoil, conclude, pause):
    suspended = after([pause], measuring(3))
    assert suspended == State(suspend, steps_left=1)
    assert after([Event.INTERFERENCE, Event.EPOCH_END, Event.EPOCH_BEGIN], suspended) == suspended
    assert after(STEP, suspended).phase is conclude


@TWICE
def test_interference_has_the_steps_since_the_window_was_opened_measured_again(measuring, suspend, spoil, conclude):
    suspended_after_one = after([Event.PAUSE], measuring(1))
    two_more = after(STEP * 2, suspended_after_one)
    spoiled = after([Event.INTERFERENCE], two_more)
    assert spoiled == State(spoil, steps_left=3)
    assert after(STEP * 2, spoiled).phase is measuring().phase
    assert after(STEP * 3, spoiled).phase is conclude


def test_pauses_outside_of_measuring_change_nothing():
    warming_up = after([Event.TRAIN_BEGIN, Outcome.ASKED, *STEP])
    assert after([Event.PAUSE, Event.EPOCH_END, Event.EPOCH_BEGIN, Event.INTERFERENCE], warming_up) == warming_up


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.OFF])
def test_the_end_of_training_leads_to_rest_from_everywhere(phase):
    assert after([Event.TRAIN_END], State(phase, 3)).phase is Phase.REST


@pytest.mark.parametrize("phase", Phase)
def test_a_fault_leads_to_off_from_everywhere(phase):
    assert after([Outcome.FAULT], State(phase, 3)).phase is Phase.OFF


@given(st.lists(st.sampled_from([*Event, *Outcome])))
def test_off_is_for_good(happenings):
    assert after(happenings, State(Phase.OFF)).phase is Phase.OFF


@given(st.lists(st.sampled_from([*Event, *Outcome]), max_size=200))
def test_steps_never_go_below_zero_and_never_exceed_the_counts(happenings):
    state = State()
    for happening in happenings:
        state = advance(state, happening, COUNTS)
        assert 0 <= state.steps_left <= 4
        assert 0 <= state.segment_steps <= 4


def test_every_phase_can_be_reached():
    assert PHASES.reachable() == set(Phase)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 1), "wait_steps is -1"),
        ((0, -1, 1), "warmup_steps is -1"),
        ((0, 0, 0), "profile_steps is 0"),
        ((0, 0, 1.5), "profile_steps is 1.5"),
        ((True, 0, 1), "wait_steps is True"),
    ],
)
def test_wrong_counts_are_named(arguments, message):
    with pytest.raises(UsageError, match=message):
        StepCounts(*arguments)
