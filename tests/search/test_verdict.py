"""The verdict on a choice, and the line of a result that states it, beside the numbers that it is about."""

import math
import random
import statistics
from collections import Counter

import pytest

from tests.support.verdicts import check_result, noise_factors
from zeus_core.measurement import Measurement
from zeus_core.optimizer.search_result import SearchResult
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison
from zeus_core.search.objectives import (
    Energy,
    EnergyWithin,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    Time,
    ZeusCost,
)
from zeus_core.search.verdict import Verdict, verdict_on


def made_trial(setting, seconds, watts, uncertainty=0.001):
    """A trial of steps that took so many seconds each."""
    total = math.fsum(seconds)
    measurement = Measurement.from_energies(total, {0: watts * total}, uncertainty_joules=uncertainty * watts * total)
    return Trial(setting, len(seconds), measurement, statistics.stdev(seconds))


def compared(slowdown, off, watts=250.0):
    """Steps at 300 W beside steps at 400 W, whose slowdown can be off by so much."""
    before = made_trial(400, [1.0, 1.0] * 50, 400.0)
    spread = off * math.sqrt(100) / 1.984  # Student's quantile of 99 degrees
    after = made_trial(300, [slowdown - spread, slowdown + spread] * 50, watts)
    return Comparison(before, after)


@pytest.mark.parametrize(
    ("slowdown", "off", "holds"),
    [(1.05, 0.02, True), (1.09, 0.02, None), (1.12, 0.04, None), (1.315, 0.12, False), (2.17, 0.18, False)],
)
def test_a_bound_is_kept_broken_or_cannot_be_told(slowdown, off, holds):
    comparison = compared(slowdown, off)
    assert comparison.slowdown_uncertainty == pytest.approx(off, rel=0.02)
    verdict = verdict_on(MaxSlowdownConstraint(1.1), comparison)
    assert verdict.holds is holds
    assert ("is not known" in verdict.text) is (holds is None)
    assert ("was not kept" in verdict.text) is (holds is False)


def test_a_bound_for_the_run_is_judged_by_the_run():
    steps = compared(1.12, 0.001)
    assert verdict_on(MaxSlowdownConstraint(1.1), steps, (1.2, 0.01)).holds is False
    assert verdict_on(MaxSlowdownConstraint(1.1), steps, (1.1, 0.01)).holds is None
    assert verdict_on(EnergyWithin(1.1), steps, (1.1, 0.01)) == verdict_on(
        MaxSlowdownConstraint(1.1), steps, (1.1, 0.01)
    )
    assert verdict_on(EnergyWithin(1.1), steps, (1.2, 0.01)).holds is False
    kept = verdict_on(MaxSlowdownConstraint(1.1), steps, (1.08, 0.01))
    assert kept == Verdict(True, ", whose bound the run kept")
    assert verdict_on(MaxSlowdownConstraint(1.1), compared(1.09, 0.001), (1.08, 0.01)) == Verdict(True, "")


@pytest.mark.parametrize(("watts", "holds"), [(300.0, True), (357.0, None), (380.0, False)])
def test_a_cost_is_judged_by_energy_time_or_both(watts, holds):
    """A step takes 1.12 times as long as at 400 W, and so takes more energy from 357 W on."""
    comparison = compared(1.12, 0.001, watts)
    assert verdict_on(Energy(), comparison).holds is holds
    assert verdict_on(ZeusCost(0.9, max_power_watts=1.0), comparison).holds is holds
    assert verdict_on(ZeusCost(0.0, max_power_watts=400.0), comparison).holds is False
    took_more = verdict_on(MaxSlowdownConstraint(1.2), comparison)
    assert took_more.holds is (holds is not False)
    assert ("took more energy" in took_more.text) is (holds is False)


def test_where_nothing_was_measured_or_nobody_knows_the_rule_nothing_is_judged():
    class Own(OptimumSelector):
        def select(self, measurements):
            return 300

    class Broken(Objective):
        def cost(self, measurement, baseline):
            raise ValueError("for this test")

    assert verdict_on(Own(), compared(1.1, 0.01)) == Verdict(None, "")
    assert verdict_on(Energy(), None) == Verdict(None, "")
    assert verdict_on(MaxSlowdownConstraint(1.1), None).holds is None
    assert verdict_on(Broken(), compared(1.1, 0.01)).holds is None
    one = made_trial(400, [1.0, 1.0], 400.0)
    alone = Trial(300, 1, Measurement.from_energies(1.0, {0: 300.0}))
    assert verdict_on(Time(), Comparison(one, alone)).holds is None


def test_the_line_of_a_result_never_contradicts_the_numbers_beside_it():
    """Timings with steps, blocks and phases that took up to 2.5 times as long, of 200 seeds."""
    seen = Counter()
    for seed in range(200):
        rng = random.Random(seed)
        selector = rng.choice(
            [MaxSlowdownConstraint(1.1), MaxSlowdownConstraint(1.25), Energy(), ZeusCost(0.5), Time()]
        )
        slowdown, watts, trial_steps = rng.uniform(1.0, 1.3), rng.uniform(200.0, 420.0), rng.randint(2, 60)
        noise = noise_factors(rng, 2 * trial_steps)
        recorded = [factor * rng.gauss(1.0, 0.01) for factor in noise]
        before = made_trial(400, recorded[:trial_steps], 400.0, rng.choice([0.001, 0.1]))
        after = made_trial(300, [slowdown * one for one in recorded[trial_steps:]], watts)
        comparison = Comparison(before, after)
        is_for_run = isinstance(selector, MaxSlowdownConstraint) and rng.random() < 0.5
        run = None
        if is_for_run:
            share = rng.random()
            run = 1 + share * (comparison.slowdown_factor - 1), share * comparison.slowdown_uncertainty
        result = SearchResult(
            name="power limit",
            unit="W",
            original=400,
            chosen=300,
            best=300,
            settings=7,
            rule=repr(selector),
            not_changed_because=None,
            stepped_aside=None,
            prediction=None,
            command=None,
            trials={400: before},
            comparison=comparison,
            searched_steps={400: trial_steps},
            chosen_steps=trial_steps,
            outlier_steps=0,
            verdict=verdict_on(selector, comparison, run),
            run_slowdown=run,
        )
        seen[check_result(result.rows(), repr(selector), "400 W")] += 1
    assert all(seen[holds] >= 20 for holds in (True, False, None)), seen
