"""Clocks are requested one latency of the driver before they are due, and no call of the driver is redundant."""

import logging
from itertools import pairwise

import pytest

from tests.support.pipeline_training import (
    A100,
    CountedCalls,
    LatentDriver,
    Run,
    Watched,
    on_driver,
    true_profile,
    works,
)
from zeus_core.events import Activity
from zeus_core.pipeline import Frontier, PipelineFrequencySettings, make_plan, schedules
from zeus_core.pipeline.optimizer._plan_follower import (
    ClockRequest,
    clocks_in_reach,
    clocks_to_follow,
    requests_of,
)
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.testing import SimulatedJob


@pytest.fixture(autouse=True)
def ranks_are_threads():
    """Signals are guarded against in the main thread only, which says so."""
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.ERROR)
    yield
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("stages", "microbatches", "model", "latency_seconds"),
    [
        *[(2, 8, A100, 0.01), (4, 8, A100, 0.05)],
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [(4, 8, A100, 0.01), (2, 8, "A40", 0.01), (4, 8, "A40", 0.01), (2, 8, A100, 0.05)]
        ),
    ],
)
def test_a_driver_that_takes_milliseconds_costs_next_to_nothing(stages, microbatches, model, latency_seconds):
    work, schedule = works(stages, model), schedules.one_f_one_b(stages, microbatches)
    make = on_driver(lambda gpu, time_source: LatentDriver(gpu, time_source, latency_seconds))
    run = Run(SimulatedJob(schedule, work, model), 60, make)
    replayed, found = run.steps_of(PlanningPhase.REPLAYING)[-20:], run.steps_of(PlanningPhase.BASELINE)
    assert len(replayed) == 20
    frontier = Frontier.from_profile(true_profile(work, model), schedule)
    best = 1 - make_plan(frontier, slowdown_factor=1.0).energy_joules / frontier.highest_clock_point[1]
    assert 1 - run.joules(replayed) / run.joules(found) >= 0.93 * best
    assert run.joules(replayed) == pytest.approx(run.first.latest["predicted"].energy_joules, rel=0.01)
    assert run.seconds(replayed) == pytest.approx(run.seconds(found), rel=0.002)


@pytest.mark.long
def test_instructions_shorter_than_a_driver_call_get_plans_it_can_follow():
    make = on_driver(lambda gpu, time_source: LatentDriver(gpu, time_source, 0.15))
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 60, make)
    replayed, found = run.steps_of(PlanningPhase.REPLAYING)[-20:], run.steps_of(PlanningPhase.BASELINE)
    assert run.seconds(replayed) <= 1.002 * run.seconds(found)
    # The planner does not know that no clock can be set before a step begins: the first lower one is left out.
    assert run.joules(replayed) == pytest.approx(run.first.latest["predicted"].energy_joules, rel=0.015)


def test_no_call_of_the_driver_is_redundant():
    drivers = {}
    settings = PipelineFrequencySettings(quiet=True)
    job = SimulatedJob(schedules.one_f_one_b(2, 8), works(2))
    run = Run(job, 60, on_driver(CountedCalls, settings, drivers))
    planned = {rank: run.observers[rank].latest["clocks"] for rank in drivers}
    assert {clock for clocks in planned.values() for clock in clocks} > {1410}  # of the rank all others wait for
    begin = run.ranks[0].time_source.now() - 10.5 * run.seconds(run.steps_of(PlanningPhase.REPLAYING)[-10:])
    for rank, driver in drivers.items():
        *calls, last = [clock for moment, clock in driver.calls if moment > begin]
        assert last is None  # the end of training
        if set(planned[rank]) == {1410}:
            assert not calls
        switches = sum(one != other for one, other in pairwise([*planned[rank], planned[rank][0]]))
        assert len(calls) <= 11 * switches + 1
        assert all(one != other for one, other in pairwise(calls))
        assert 1410 not in calls  # the original clock, which needs no lock


def test_the_clock_after_an_iteration_is_the_next_without_time_for_another():
    assert clocks_to_follow((1200, 1410, 1200), 1410, 0.01, 0.5) == [1200, None, 1200, None]
    assert clocks_to_follow((1200, 1410, 1200), 1410, 0.01, None) == [1200, None, 1200, None]
    assert clocks_to_follow((1200, 1410, 1200), 1410, 0.01, 0.015) == [1200, None, 1200, 1200]


def test_a_clock_that_the_plan_leaves_is_the_one_before():
    assert clocks_to_follow((None, 1200, None), 1410, 0.0, None) == [None, 1200, 1200, None]


def test_a_request_comes_one_latency_before_the_change():
    requests = requests_of([None, 1200, 1200, None], [0.1, 0.2, 0.3], 0.01)
    assert requests == [
        [ClockRequest(1200, pytest.approx(0.09))],
        [],
        [ClockRequest(None, pytest.approx(0.29))],
    ]


def test_a_request_before_short_computations_is_earlier_but_after_its_preceding_change():
    requests = requests_of([1200, 1200, 1200, None], [0.03, 0.02, 0.02], 0.05)
    assert requests == [[ClockRequest(None, pytest.approx(0.02))], [], []]
    requests = requests_of([None, 1200, 1200, 900, None], [0.03, 0.02, 0.02, 0.02], 0.05)
    assert requests == [[ClockRequest(1200, 0.0)], [ClockRequest(900, 0.0)], [], [ClockRequest(None, 0.0)]]


def test_after_an_exception_in_a_step_the_original_clock_is_in_force():
    clocks = []

    class Interrupted(Watched):
        def on_instruction_end(self, name):
            super().on_instruction_end(name)
            if len(self.phases) == 55 and not self._is_over:
                super().on_instruction_begin("forward", None, 1)  # which requests the clock of the next one
                super().on_pause(Activity.IDLE)  # what a tap reports where a step raises
                self._monitor.time_source.advance(1.0)
                clocks.append(self.gpu._locked_clock_mhz)
                self._is_over = True

        _is_over = False

    Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 56, Interrupted)
    assert clocks == [1410, 1410]


@pytest.mark.parametrize(
    ("clocks", "seconds", "expected"),
    [
        ([1410, 420, 1185, 1185, 1410], [0.06, 0.18, 0.14, 0.2], [1410, 1410, 1185, 1185, 1410]),
        ([1410, 420, 1185, 1185, 1410], [0.16, 0.18, 0.14, 0.2], [1410, 420, 1185, 1185, 1410]),
        ([1410, 420, 1185, 1185, 1410], [0.06, 0.40, 0.14, 0.2], [1410, 420, 1185, 1185, 1410]),
        ([None, 900, None, 800, None], [0.2, 0.05, 0.1, 0.4], [None, None, None, 800, None]),
        ([1200, 1410, 1100], [0.01, 0.01], [1200, 1410, 1100]),
    ],
    ids=["late for the higher clock", "in time", "the lower clock lasts", "original clock", "up and down"],
)
def test_a_lower_clock_is_skipped_where_the_next_higher_would_be_late(clocks, seconds, expected):
    assert clocks_in_reach(clocks, seconds, 0.15) == expected
    assert clocks_in_reach(clocks, seconds, 0.0) == clocks
