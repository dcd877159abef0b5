"""Which moves are refused unseen: none that would keep the limit. And which part of a run goes to a lower clock."""

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.pipeline.planner.instances import pipelines, smooth_profile
from zeus_core.pipeline import Frontier, schedules
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.switching._switch_moves import largest_part, may_fit
from zeus_core.pipeline.planner.switching._switch_search import find_latest, run_end
from zeus_core.pipeline.planner.switching._switch_starts import one_clock_per_rank
from zeus_core.pipeline.planner.switching._switch_task import NumberedProblem, RunState, run_iteration

QUIET = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def started(task):
    """One clock per rank, and its state with the latest ends."""
    chosen, state = one_clock_per_rank(task), RunState.for_task(task)
    run_iteration(task, chosen, state)
    find_latest(task, chosen, state)
    return chosen, state


def seconds_of(task, chosen):
    state = RunState.for_task(task)
    run_iteration(task, chosen, state)
    return state.result[0]


@settings(max_examples=60, **QUIET)
@given(pipelines(), st.sampled_from([0.0, 0.02]), st.sampled_from([1.0, 1.05, 1.2, 2.0]), st.data())
def test_no_part_that_ends_in_time_at_a_slower_clock_is_refused(pipeline, switch_seconds, factor, data):
    problem = Frontier.from_profile(*pipeline).problem
    numbered = NumberedProblem.from_problem(problem)
    limit = factor * seconds_of(numbered.task, one_clock_per_rank(numbered.task))
    task = numbered.priced(limit, False, SwitchPrice(switch_seconds))
    assume(task.clocks > 1)
    chosen, state = started(task)
    assume(state.result[0] <= limit)
    rank = data.draw(st.integers(0, len(task.first_in_order) - 2))
    first, last = int(task.first_in_order[rank]), int(task.first_in_order[rank + 1])
    begin = data.draw(st.integers(first, last - 1))
    stop = data.draw(st.integers(begin + 1, last))
    own = int(chosen[task.order[begin]])
    assume(own + 1 < task.clocks)
    clock = data.draw(st.integers(own + 1, task.clocks - 1))
    lower, part = chosen.copy(), task.order[begin:stop]
    times = task.time.reshape(-1, task.clocks)[task.kind[part]]
    assume(np.isfinite(times[:, clock]).all() and (times[:, clock] >= times[:, own]).all())
    lower[part] = clock
    switches = (begin > first) - (begin == first)  # the run is the whole rank, so others are made at the end
    if seconds_of(task, lower) <= limit:
        assert may_fit(task, state, begin, stop, own, clock, switches)


def test_the_lower_part_is_as_long_as_its_rank_has_time():
    profile = smooth_profile(4, noise=0.0)
    numbered = NumberedProblem.from_problem(Frontier.from_profile(profile, schedules.one_f_one_b(4, 12)).problem)
    highest = seconds_of(numbered.task, np.zeros(len(numbered.task.kind), np.int64))
    for factor in (1.0, 1.02, 1.05):
        task = numbered.priced(factor * highest, False, SwitchPrice(0.005, 0.1))
        chosen, state = started(task)
        for rank in range(4):
            place, last = int(task.first_in_order[rank]), int(task.first_in_order[rank + 1])
            assert run_end(task, chosen, place, last) == last
            begin, stop, seen = largest_part(task, state, rank, place, last, last, 0, 3, 0, 0)
            lengths = {}
            for first in range(place, last):
                for length in range(1, last - first + 1):
                    lower = chosen.copy()
                    lower[task.order[first : first + length]] = 3
                    if seconds_of(task, lower) <= task.limit_seconds:
                        lengths[first] = length
            longest = max(lengths.values(), default=0)
            # Waits of other ranks can come back to a part and shorten it, so that it may be a little too long.
            assert longest <= stop - begin <= longest + 2
            assert stop - begin <= seen


def test_a_part_leaves_the_dwell_to_what_is_before_and_after_it():
    profile = smooth_profile(4, noise=0.0)
    numbered = NumberedProblem.from_problem(Frontier.from_profile(profile, schedules.one_f_one_b(4, 12)).problem)
    highest = seconds_of(numbered.task, np.zeros(len(numbered.task.kind), np.int64))
    parts = 0
    for dwell_seconds in (0.2, 0.5, 0.8):
        task = numbered.priced(1.05 * highest, False, SwitchPrice(0.005, 0.0, dwell_seconds))
        chosen, state = started(task)
        for rank in range(4):
            place, last = int(task.first_in_order[rank]), int(task.first_in_order[rank + 1])
            begin, stop, _ = largest_part(task, state, rank, place, last, last, 0, 3, 0, 0)
            if stop > begin:
                lower = chosen.copy()
                lower[task.order[begin:stop]] = 3
                after = RunState.for_task(task)
                run_iteration(task, lower, after)
                assert after.result[1] >= dwell_seconds - 0.005  # waits of other ranks can come back to a part
                parts += 1
    assert parts > 3
