"""Children of two plans: they keep limit and dwell, and the cheapest is never dearer than the plans it comes from."""

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.pipeline.planner.instances import pipelines
from zeus_core.pipeline import Frontier
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.switching._switch_crossing import _crossed, _Plan, cross
from zeus_core.pipeline.planner.switching._switch_repair import mend
from zeus_core.pipeline.planner.switching._switch_starts import one_clock_per_rank
from zeus_core.pipeline.planner.switching._switch_task import NumberedProblem, RunState, run

QUIET = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
PRICES = st.builds(SwitchPrice, st.sampled_from([0.0, 0.005, 0.02]), st.just(0.0), st.sampled_from([0.0, 0.1, 0.5]))


def priced(pipeline, price, factor):
    numbered = NumberedProblem.from_problem(Frontier.from_profile(*pipeline).problem)
    seconds = run(numbered.task, one_clock_per_rank(numbered.task), RunState.for_task(numbered.task))[0]
    return numbered.priced(factor * seconds, False, price)


def random_clocks(task, seed):
    """Random clocks that each instruction has."""
    random = np.random.default_rng(seed)
    times = task.time.reshape(-1, task.clocks)[task.kind]
    return np.array([random.choice(np.flatnonzero(np.isfinite(own))) for own in times], np.int64)


def keeps(task, chosen):
    seconds, dwell, _ = run(task, chosen, RunState.for_task(task))
    return seconds <= task.limit_seconds and dwell >= task.dwell_seconds


@settings(max_examples=60, **QUIET)
@given(pipelines(), PRICES, st.sampled_from([1.0, 1.05, 1.2, 2.0]))
def test_descendants_keep_limit_and_dwell_and_the_best_costs_no_more(pipeline, price, factor):
    task = priced(pipeline, price, factor)
    plans = {}
    for seed in range(6):
        chosen = random_clocks(task, seed) if seed else one_clock_per_rank(task)
        mend(task, chosen, RunState.for_task(task), 100.0)
        if keeps(task, chosen):
            plans[chosen.tobytes()] = chosen
    assume(plans)
    before = [plan.copy() for plan in plans.values()]
    found = cross(task, list(plans.values()), 100.0, effort=0.1)
    costs = [run(task, chosen, RunState.for_task(task))[2] for chosen in found]
    assert all(keeps(task, chosen) for chosen in found)
    assert costs == sorted(costs)
    assert costs[0] <= min(run(task, chosen, RunState.for_task(task))[2] for chosen in before)
    assert all((plan == old).all() for plan, old in zip(plans.values(), before, strict=True)), "plans are not changed"


@settings(max_examples=60, **QUIET)
@given(pipelines(), st.integers(0, 2**31 - 1))
def test_a_crossing_has_each_clock_of_one_of_its_parents(pipeline, random):
    task = priced(pipeline, SwitchPrice(), 1.0)
    parents = [_Plan(0.0, random_clocks(task, seed)) for seed in range(3)]
    crossed, _ = _crossed(task, parents, random)
    assert any(
        ((crossed == one.chosen) | (crossed == other.chosen)).all()
        for one in parents
        for other in parents
        if one is not other
    )
