"""The energies of the parts of a training against the truth of the NVML driver, over random loads."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import defaultdict

import pytest

from tests.support.driven_gpu import Fault, Physics
from tests.support.random_training import (
    LAGS_SECONDS,
    Case,
    Outcome,
    make_case,
    make_erratic_case,
    make_pass_case,
    measure,
)
from tests.support.variants import long_but_first
from zeus_core.events import Activity


def check_sums(outcome: Outcome) -> None:
    """What holds in every case."""
    account = outcome.summary.account
    assert sum(tally.measured_joules for tally in account.activities.values()) == account.total.measured_joules
    totals = [*outcome.totals, *([account.total.measured_joules] if account.total.energy_joules is not None else [])]
    assert totals == sorted(totals), "totals never fall"
    assert all(power <= outcome.max_watts + 0.01 for power in outcome.powers)
    for tally in [*account.activities.values(), account.total]:
        assert tally.measured_joules <= outcome.max_watts * tally.seconds + 1e-3
    assert outcome.calls_per_second <= 20


def most_misses(count: int) -> int:
    """Return how many of some intervals may miss the truth: more, if 1 in 20 does, happen in 1 of 40 classes."""
    left, misses = 1.0, -1
    while left > 0.025:
        misses += 1
        left -= math.comb(count, misses) * 0.05**misses * 0.95 ** (count - misses)
    return misses


def check_truth(outcomes: list[Outcome], misses: int = 0) -> None:
    """At least 95 % of the energies of each class of part are true, and so are the totals.

    Args:
        outcomes: The trainings.
        misses: How many may be missed in any class, where there are few cases.
    """
    hits: dict[str, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        account = outcome.summary.account
        known = {
            f"{activity.value}: {outcome.lengths.get(activity, '')}": (tally, outcome.truth[activity])
            for activity, tally in account.activities.items()
        }
        known["total"] = (account.total, sum(outcome.truth.values()))
        for name, (tally, true_joules) in known.items():
            if tally.energy_joules is not None:
                off = abs(tally.energy_joules - true_joules)
                hits[name].append(off <= tally.measured.uncertainty_joules + 0.01)
    for name, inside in hits.items():
        assert inside.count(False) <= max(most_misses(len(inside)), misses), name
    of_all = [is_inside for inside in hits.values() for is_inside in inside]
    assert of_all.count(False) <= max(0.05 * len(of_all), misses)


LONG = "long, 5 s and more"


def check_widths(outcomes: list[Outcome], times: float = 1.0) -> None:
    """Where parts are of two updates and more, 5 s in all: steps are known to 2 %, others to 6 %, in 19 of 20 cases.

    Args:
        outcomes: The trainings.
        times: So many times that.
    """
    is_known = [
        tally.measured.uncertainty_joules
        <= times * (0.02 if activity is Activity.STEPS else 0.06) * outcome.truth[activity]
        for outcome in outcomes
        for activity, tally in outcome.summary.account.activities.items()
        if outcome.lengths[activity] == LONG
    ]
    assert len(is_known) >= 20
    assert is_known.count(False) <= most_misses(len(is_known))


@pytest.mark.parametrize(("period_seconds", "is_faulty"), [(0.1, True), (0.02, False), (None, True)])
def test_the_truth_lies_in_the_stated_intervals(period_seconds, is_faulty):
    outcomes = [measure(make_case(seed, period_seconds, is_faulty)) for seed in range(3)]
    for outcome in outcomes:
        check_sums(outcome)
    check_truth(outcomes, misses=1)


@pytest.mark.long
@pytest.mark.parametrize("is_faulty", [False, True], ids=["sound", "faulty"])
@pytest.mark.parametrize("period_seconds", [0.1, 0.02, None])
def test_the_truth_lies_in_the_stated_intervals_of_many(period_seconds, is_faulty):
    outcomes = [measure(make_case(seed, period_seconds, is_faulty)) for seed in range(100, 130)]
    for outcome in outcomes:
        check_sums(outcome)
    check_truth(outcomes)
    if period_seconds is not None:
        check_widths(outcomes)


@pytest.mark.long
@pytest.mark.parametrize("is_faulty", [False, True], ids=["sound", "faulty"])
@pytest.mark.parametrize("period_seconds", [0.1, 0.02])
def test_stated_intervals_of_unrelated_parts_hold_the_truth(period_seconds, is_faulty):
    outcomes = [measure(make_erratic_case(seed, period_seconds, is_faulty)) for seed in range(100, 130)]
    for outcome in outcomes:
        check_sums(outcome)
    check_truth(outcomes)
    check_widths(outcomes, times=1.5)


@pytest.mark.parametrize("kind", long_but_first(["fails", "sticks", "loses", "resets", "slips"], 2))
def test_a_passing_fault_is_bridged_by_the_power_beside_it(kind):
    outcomes = []
    for make, period_seconds, seed in itertools.product((make_case, make_erratic_case), (0.1, 0.02), (11, 12)):
        case = make(seed, period_seconds, is_faulty=False)
        case.faults.append(Fault(kind, 8.0, 8.01 if kind == "slips" else 10.0))
        outcomes.append(measure(case))
        check_sums(outcomes[-1])
        total = outcomes[-1].summary.account.total.measured
        assert total.method == ("counted" if kind in {"sticks", "slips"} else total.method)
        assert total.uncertainty_joules <= 0.03 * total.energy_joules
    check_truth(outcomes, misses=4)  # activities of a training are wrong together


@pytest.mark.parametrize("is_seen_later", [False, True])
@pytest.mark.parametrize("kind", ["fails", "sticks", "loses"])
@pytest.mark.parametrize("period_seconds", [0.1, 0.02])
def test_an_activity_that_begins_in_a_fault_does_not_spoil_the_others(period_seconds, kind, is_seen_later):
    case = Case(Physics(1.013 * period_seconds, period_seconds, 0.005, seed=2), script=[(70.0, 0.3)])
    case.faults.append(Fault(kind, 4.9, 5.9))
    for _ in range(10):
        case.run(Activity.STEPS, [300.0], 0.5)
    case.run(Activity.EVALUATION, [150.0], 0.1)
    for _ in range(10):
        case.run(Activity.STEPS, [300.0], 0.5)
    if is_seen_later:
        case.run(Activity.EVALUATION, [150.0], 2.0)
        case.run(Activity.STEPS, [300.0], 2.0)
    case.script.append((70.0, 1.0))
    outcome = measure(case)
    check_sums(outcome)
    check_truth([outcome])
    steps = outcome.summary.account.activities[Activity.STEPS]
    assert steps.measured.uncertainty_joules <= 0.02 * outcome.truth[Activity.STEPS]


@pytest.mark.parametrize("seed", [200234, 200369, 200383])
def test_a_sound_counter_has_lost_nothing(seed):
    """Before, of a long time between two updates, whatever drew less than parts of its kind do was taken for lost.

    The total was off by 92 J, and 72 J were stated, where the counter tells it within 5 J.
    """
    outcome = measure(make_erratic_case(seed, 0.02, is_faulty=False))
    check_sums(outcome)
    check_truth([outcome])
    total = outcome.summary.account.total.measured
    assert total.method == "counted"
    assert total.uncertainty_joules <= 0.005 * total.energy_joules


@pytest.mark.parametrize("kind", ["fails", "sticks"])
def test_a_counter_that_fails_for_good_leaves_the_rest_to_the_power(kind):
    """Before what was drawn until then told the rest: 38 % off, +-70 %, and an evaluation of 0 J."""
    case = make_erratic_case(7, 0.1, is_faulty=False)
    case.faults.append(Fault(kind, 5.0, 1000.0))
    outcome = measure(case)
    check_sums(outcome)
    check_truth([outcome])
    total = outcome.summary.account.total
    assert total.measured.method == "estimated"
    assert abs(total.measured_joules - sum(outcome.truth.values())) <= total.measured.uncertainty_joules
    assert total.measured.uncertainty_joules <= 0.15 * total.measured_joules


def test_short_parts_beginning_after_a_counter_failure_are_reported_or_lost():
    """Before, those too short for a sample counted as 0 J: evaluations of 870 J were told to be 302 J +-8."""
    case = Case(Physics(0.1013, 0.1, 0.005, seed=2), script=[(70.0, 0.3)])
    case.faults.append(Fault("fails", 6.0, 1000.0))
    for _ in range(20):
        case.run(Activity.STEPS, [300.0], 0.3)
    for seconds in (1.0, *[0.1] * 19):
        case.run(Activity.EVALUATION, [300.0], seconds)
        case.run(Activity.STEPS, [300.0], 0.3)
    case.script.append((70.0, 1.0))
    outcome = measure(case)
    check_sums(outcome)
    check_truth([outcome])


def test_power_tells_the_energy_where_the_counter_never_answers():
    outcomes = [measure(make_case(seed, 0.1, is_faulty=False), unanswered=None) for seed in range(3)]
    for outcome in outcomes:
        check_sums(outcome)
        total = outcome.summary.account.total
        assert total.measured.method == "integrated"
        assert total.measured.uncertainty_joules <= 0.15 * total.energy_joules
    check_truth(outcomes, misses=1)


def test_a_sensor_that_shows_nothing_but_0_watts_ends_no_training():
    """Before the first piece of that raised ZeroDivisionError."""
    case = Case(Physics(None, 0.1, seed=2, peaks_per_second=0.0), script=[(0.0, 0.3)])
    for activity in (Activity.STEPS, Activity.EVALUATION) * 8:
        case.run(activity, [0.0], 0.5)
    case.script.append((0.0, 1.0))
    outcome = measure(case)
    assert outcome.summary.account.total.measured_joules < 1.0
    assert sum(tally.measured_joules for tally in outcome.summary.account.activities.values()) < 1.0


def test_a_counter_that_answers_late_counts():
    outcomes = [measure(make_case(seed, 0.1, is_faulty=False), unanswered=15) for seed in range(3)]
    for outcome in outcomes:
        check_sums(outcome)
        total = outcome.summary.account.total
        assert total.measured.uncertainty_joules <= 0.05 * total.energy_joules
    check_truth(outcomes, misses=1)


@pytest.mark.parametrize(
    ("period_seconds", "lag_seconds"), long_but_first([(0.1, 0.01), (0.1, 0.0), (0.02, 0.01), (0.02, 0.0)])
)
def test_parts_of_two_updates_are_within_six_percent_steps_within_two(period_seconds, lag_seconds):
    generator = random.Random(1)
    case = Case(Physics(1.013 * period_seconds, period_seconds, 0.005, lag_seconds, 0.02, seed=1), script=[(70.0, 0.3)])
    seconds = 2 * period_seconds * 1.02
    for _ in range(math.ceil(5.2 / seconds)):
        for _ in range(generator.choice((1, 2, 3))):
            case.run(Activity.STEPS, [400.0, 300.0, 350.0], 0.23 * generator.uniform(0.99, 1.01))
        case.run(Activity.EVALUATION, [150.0], seconds * generator.uniform(1.0, 1.2))
    case.script.append((70.0, 1.0))
    outcome = measure(case)
    check_truth([outcome])
    activities = outcome.summary.account.activities
    evaluation, steps = activities[Activity.EVALUATION].measured, activities[Activity.STEPS].measured
    assert evaluation.uncertainty_joules <= 0.06 * outcome.truth[Activity.EVALUATION]
    assert steps.uncertainty_joules <= 0.02 * outcome.truth[Activity.STEPS]


@pytest.mark.parametrize("seed", [1005, 1036, 1038, 1050])
def test_short_passes_inside_steps_are_in_their_intervals(seed):
    """Before, what a step does after a pass was taken for any of its time: 20 % of such passes of 5 s were missed."""
    outcome = measure(make_pass_case(seed, 0.1, is_faulty=False))
    check_sums(outcome)
    check_truth([outcome])


@pytest.mark.parametrize("period_seconds", [0.1, 0.02])
def test_a_reference_pass_of_half_an_update_is_measured(period_seconds):
    case = Case(Physics(1.013 * period_seconds, period_seconds, 0.005, 0.01, 0.02, seed=5), script=[(70.0, 0.3)])
    for _ in range(40):
        step = [(Activity.STEPS, 350.0, 0.03), (Activity.REFERENCE, 180.0, 0.05), (Activity.STEPS, 420.0, 0.21)]
        case.step([*step, (Activity.STEPS, 300.0, 0.1)])
    case.script.append((70.0, 1.0))
    outcome = measure(case)
    check_sums(outcome)
    check_truth([outcome])
    reference = outcome.summary.account.activities[Activity.REFERENCE].measured
    assert reference.uncertainty_joules <= 0.5 * outcome.truth[Activity.REFERENCE]


@pytest.mark.long
@pytest.mark.parametrize("is_faulty", [False, True], ids=["sound", "faulty"])
@pytest.mark.parametrize("period_seconds", [0.1, 0.02])
def test_short_passes_of_many_trainings_are_in_their_intervals(period_seconds, is_faulty):
    outcomes = [measure(make_pass_case(seed, period_seconds, is_faulty)) for seed in range(100, 140)]
    for outcome in outcomes:
        check_sums(outcome)
    check_truth(outcomes)


def test_thirty_evaluations_of_thirty_milliseconds_between_steps():
    """Before energies were divided between updates: 348 J +- 178 of 50, at a mean power of 403 W."""
    outcomes = []
    for seed in range(6):
        generator = random.Random(seed)
        physics = Physics(0.1 * generator.uniform(0.98, 1.02), 0.1, 0.005, generator.choice(LAGS_SECONDS), seed=seed)
        case = Case(physics, script=[(70.0, 0.3)])
        for _ in range(30):
            case.run(Activity.STEPS, [400.0], 0.2 * generator.uniform(0.95, 1.05))
            case.run(Activity.EVALUATION, [60.0], 0.03)
        case.script.append((70.0, 1.0))
        outcomes.append(measure(case))
        check_sums(outcomes[-1])
        evaluation = outcomes[-1].summary.account.activities[Activity.EVALUATION].measured
        assert evaluation.uncertainty_joules <= 4.0 * outcomes[-1].truth[Activity.EVALUATION]
    check_truth(outcomes, misses=1)


@pytest.mark.parametrize("seed", range(3))
def test_garbage_of_the_sensor_is_no_energy(seed):
    case = make_case(seed, None, is_faulty=False)
    case.physics = dataclasses.replace(case.physics, spike_every=13)
    outcome = measure(case)
    check_sums(outcome)
    check_truth([outcome], misses=1)


def test_a_sensor_that_shows_what_no_board_draws_gives_no_energy():
    case = make_case(0, None, is_faulty=False)
    case.physics = dataclasses.replace(case.physics, power_gain=30.0)
    outcome = measure(case)
    assert outcome.summary.account.total.energy_joules is None
