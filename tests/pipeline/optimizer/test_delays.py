"""Is the plan at fault for a slow iteration, or the machine?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.pipeline.optimizer._watches import DelayVerdict, DelayWatch


@pytest.fixture
def watch():
    watch = DelayWatch(slowdown_factor=1.0, tolerance_fraction=0.02)
    watch.begin_planning()
    watch.begin_replaying()
    return watch


def replan(watch):
    watch.begin_planning()
    watch.begin_replaying()


def test_an_iteration_within_the_tolerance_is_not_too_slow(watch):
    assert not watch.is_too_slow(1.019, baseline_seconds=1.0)
    assert watch.is_too_slow(1.05, baseline_seconds=1.0)
    assert watch.delayed_seconds == 1.05


def test_what_is_waited_for_regardless_is_no_delay(watch):
    assert not watch.is_too_slow(1.3, 1.0, [1.3])
    assert watch.is_too_slow(1.4, 1.0, [1.3])


def test_a_baseline_that_was_slower_than_a_plan_is_not_trusted(watch):
    assert not watch.is_too_slow(1.0, baseline_seconds=1.1)
    assert watch.is_too_slow(1.1, baseline_seconds=1.1)
    watch.change_plans()
    assert not watch.is_too_slow(1.1, baseline_seconds=1.1), "of other plans nothing is known"


def test_a_machine_that_becomes_slower_is_not_the_plans_fault(watch):
    assert watch.is_too_slow(1.1, 1.0)
    assert watch.judge(baseline_seconds=1.1) is DelayVerdict.MACHINE
    assert watch.time_budget_factor == 1.0


def test_a_plan_never_fast_enough_ends_at_its_third_fault(watch):
    for verdict, factor in ((DelayVerdict.PLAN, 0.8), (DelayVerdict.PLAN, 0.64), (DelayVerdict.EVERY_PLAN, 0.512)):
        assert watch.is_too_slow(1.25, 1.0)
        assert watch.judge(1.0) is verdict
        assert watch.time_budget_factor == pytest.approx(factor)
        replan(watch)


def test_a_plan_once_fast_enough_is_forgiven_four_delays_in_a_row(watch):
    assert not watch.is_too_slow(1.0, 1.0)
    for verdict in (*[DelayVerdict.TRANSIENT] * 4, DelayVerdict.PLAN):
        assert watch.is_too_slow(1.25, 1.0)
        assert watch.judge(1.0) is verdict
        watch.begin_replaying()


def test_a_new_plan_has_no_credit(watch):
    watch.is_too_slow(1.0, 1.0)
    watch.is_too_slow(1.25, 1.0)
    assert watch.judge(1.0) is DelayVerdict.TRANSIENT
    replan(watch)
    watch.is_too_slow(1.25, 1.0)
    assert watch.judge(1.0) is DelayVerdict.PLAN


def test_a_plan_that_is_fast_enough_for_long_clears_the_record(watch):
    watch.is_too_slow(1.25, 1.0)
    assert watch.judge(1.0) is DelayVerdict.PLAN
    replan(watch)
    for _ in range(5):
        assert not watch.is_too_slow(1.0, 1.0)
    watch.is_too_slow(1.25, 1.0)
    assert watch.judge(1.0) is DelayVerdict.TRANSIENT
    assert watch.time_budget_factor == 1.0


@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.booleans()), max_size=40))
def test_the_time_budget_never_grows_beyond_what_the_user_allows(windows):
    watch = DelayWatch(1.0, 0.02)
    watch.begin_replaying()
    for seconds, baseline_seconds, is_new in windows:
        if watch.is_too_slow(seconds, 1.0):
            watch.judge(baseline_seconds)
            assert 0 < watch.time_budget_factor <= 1.0
            watch.begin_replaying()
        if is_new:
            replan(watch)
