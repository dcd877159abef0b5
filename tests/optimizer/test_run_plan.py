"""What a search may cost a whole run, in virtual numbers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optimizer.test_search import BOUND, Board
from zeus_core.errors import UsageError
from zeus_core.search import AdaptiveSearch
from zeus_core.search.objectives import Energy, MaxSlowdownConstraint
from zeus_core.search.run.run_plan import Prediction, RunProgress, search_cost

SLOWER = Prediction(200, 0.15, (0.1, 0.2), 1.06, (1.04, 1.08))


def test_what_was_not_used_up_is_left_for_the_steps_to_come():
    quick = RunProgress(steps=100, seconds=100.0, original_seconds=1.0, max_steps=200)
    assert quick.factor_left(1.1) == pytest.approx(1.2)
    slow = RunProgress(steps=100, seconds=115.0, original_seconds=1.0, max_steps=200)
    assert slow.factor_left(1.1) == pytest.approx(1.05)
    spent = RunProgress(steps=100, seconds=130.0, original_seconds=1.0, max_steps=200)
    assert spent.factor_left(1.1) < 1


@settings(deadline=None)
@given(
    steps=st.integers(0, 1000),
    left=st.integers(1, 1000),
    step_seconds=st.floats(0.01, 10),
    slowdown=st.floats(1.0, 1.3),
    factor=st.floats(1.0, 2.0),
)
def test_steps_at_the_remaining_slowdown_make_the_run_last_the_factor(steps, left, step_seconds, slowdown, factor):
    run = RunProgress(steps, steps * slowdown * step_seconds, step_seconds, steps + left)
    whole = run.seconds + left * run.factor_left(factor) * step_seconds
    assert whole == pytest.approx(factor * (steps + left) * step_seconds)


@settings(deadline=None)
@given(
    steps=st.integers(0, 1000),
    left=st.integers(0, 1000),
    slowdown=st.floats(1.0, 1.5),
    trial=st.floats(1.0, 4.0),
    factor=st.floats(1.0, 1.5),
)
def test_an_affordable_trial_leaves_the_bound_within_reach(steps, left, slowdown, trial, factor):
    """After it, the original setting keeps the bound, if it did before."""
    run = RunProgress(steps, steps * slowdown, 1.0, steps + left)
    affordable = run.affordable_steps(factor, trial)
    assert 0 <= affordable <= left
    after = RunProgress(steps + affordable, run.seconds + affordable * trial, 1.0, steps + left)
    if run.factor_left(factor) >= 1:
        assert after.factor_left(factor) >= 1 - 1e-9
    elif trial > 1:
        assert affordable == 0


def test_a_run_of_unknown_length_lasts_as_long_again():
    assert RunProgress(0, 0.0, 1.0).horizon_steps == 200
    assert RunProgress(50, 50.0, 1.0).steps_left == 200
    assert RunProgress(1000, 1000.0, 1.0).steps_left == 1000
    assert RunProgress(300, 300.0, 1.0, max_steps=200).steps_left == 0
    assert RunProgress(200, 200.0, 1.0, max_steps=200).factor_left(1.1) == math.inf


def test_the_cost_of_a_search_is_said_in_advance():
    cost = search_cost(RunProgress(10, 10.0, 1.0, 2000), SLOWER, 0, 200, factor=1.1)
    assert str(cost) == "about 200 of 2,000 steps, at most +0.8% time"
    assert cost.saving_fraction == pytest.approx(0.15 * (2000 - 10 - 200) / 2000)
    assert cost.pays


def test_steps_at_the_original_take_no_more_time():
    run = RunProgress(10, 10.0, 1.0, 2000)
    both, trial = search_cost(run, SLOWER, 150, 50), search_cost(run, SLOWER, 0, 50)
    assert both.steps == 200
    assert both.time_fraction == trial.time_fraction > 0


def test_a_run_too_short_for_the_search_does_not_pay():
    cost = search_cost(RunProgress(10, 10.0, 1.0, 200), SLOWER, 0, 200)
    assert cost.saving_fraction == 0.0
    assert not cost.pays
    assert not search_cost(RunProgress(60, 60.0, 1.0, 60), SLOWER, 0, 200).pays


def test_a_setting_that_saves_nothing_does_not_pay():
    nothing = Prediction(300, 0.0, (0.0, 0.0), 1.0, (1.0, 1.0))
    assert not search_cost(RunProgress(10, 10.0, 1.0, 2000), nothing, 0, 200).pays


@pytest.mark.parametrize("factor", [1.0, 1.02, 1.1])
@pytest.mark.parametrize("slowest", [1.0, 1.05, 3.0])
def test_a_search_under_a_bound_takes_no_more_than_the_bound_allows(factor, slowest):
    prediction = Prediction(100, 0.1, (0.0, 0.2), 1.0, (1.0, slowest))
    for steps in (60, 200, 2000):
        cost = search_cost(RunProgress(10, 10.0, 1.0, steps), prediction, 0, 200, factor)
        assert 0 <= cost.time_fraction <= factor - 1 + 1e-9


@pytest.mark.parametrize("selector", [Energy(), MaxSlowdownConstraint(1.1)], ids=lambda rule: type(rule).__name__)
def test_the_prediction_holds_the_truth(selector):
    held, runs = 0, 8
    for seed in range(runs):
        board = Board(BOUND, range(100, 301, 25), noise=0.01, seed=seed)
        search = AdaptiveSearch(board.settings, selector)
        assert search.prediction() is None
        search.tell(board.trial(300))
        prediction = search.prediction(200)
        truth = 1 - board.seconds[200] * board.watts[200] / (board.seconds[300] * board.watts[300])
        held += prediction.saving_interval[0] <= truth <= prediction.saving_interval[1]
        assert prediction.slowdown_interval[0] <= prediction.slowdown_factor <= prediction.slowdown_interval[1]
        chosen = search.prediction()
        assert chosen.setting in board.settings
        if isinstance(selector, MaxSlowdownConstraint):
            assert chosen.slowdown_factor <= 1.1
    assert held >= 0.8 * runs


def test_the_original_is_predicted_to_change_nothing():
    board = Board(BOUND, range(100, 301, 25), noise=0.01)
    search = AdaptiveSearch(board.settings, Energy())
    search.tell(board.trial(300))
    prediction = search.prediction(300)
    assert prediction.saving_fraction == pytest.approx(0.0, abs=1e-9)
    assert prediction.slowdown_interval == pytest.approx((1.0, 1.0), abs=1e-3)
    with pytest.raises(UsageError, match="setting"):
        search.prediction(7)


def test_a_confirmation_beyond_the_bound_leads_to_a_safer_setting():
    board = Board(BOUND, range(100, 301, 25), noise=0.003)
    search = AdaptiveSearch(board.settings, MaxSlowdownConstraint(1.1))
    board.run(search)
    first = search.choice
    assert first < 300
    board.seconds[first] *= 1.08
    search.tell(board.trial(first))
    board.run_again(search)
    assert search.choice > first
