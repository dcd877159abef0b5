"""The saving and the slowdown of a change, against simulated truth."""

import math
import random
import statistics

import pytest

from zeus_core.measurement import Measurement
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison, mean_uncertainty


def trial(setting, joules, *, steps=40, seconds=20.0, uncertainty=0.0, deviation=0.0):
    measurement = Measurement.from_energies(seconds, {0: joules}, uncertainty_joules=uncertainty)
    return Trial(setting, steps, measurement, deviation)


def test_a_saving_beyond_its_uncertainty_is_certain():
    comparison = Comparison(trial(400, 4000.0, uncertainty=40.0), trial(300, 3400.0, uncertainty=40.0))
    assert comparison.saving_fraction == pytest.approx(0.15)
    assert 0.012 < comparison.saving_uncertainty < 0.02
    assert comparison.is_certain
    assert "saving 15.0% ±1." in str(comparison)


@pytest.mark.parametrize("joules", [4010.0, 3980.0, 3950.0])
def test_a_saving_within_its_uncertainty_is_not(joules):
    assert not Comparison(trial(400, 4000.0, uncertainty=40.0), trial(300, joules, uncertainty=40.0)).is_certain


def test_means_that_contradict_the_saving_say_why():
    before, after = trial(400, 4000.0), trial(300, 3600.0, seconds=21.0)
    agreeing = Comparison(before, after, saving=(0.12, 0.03), slowdown=(1.06, 0.02))
    contradicted = Comparison(before, after, saving=(0.12, 0.03), slowdown=(1.09, 0.02))
    assert agreeing.is_of_the_trials
    assert not contradicted.is_of_the_trials
    assert "in turn" not in str(agreeing)
    assert "in turn" in str(contradicted)


def test_a_saving_that_the_means_do_not_give_has_both():
    before, after = trial(400, 3096.0, uncertainty=9.0), trial(300, 3026.4, uncertainty=9.0)  # 77.4 and 75.66 J
    found = Comparison(before, after, saving=(0.012, 0.011), slowdown=(1.0, 0.01)).saving_text
    assert found == "1.2% ±1.1 of the energy of a step, corrected for drift (2.2% by the means of all steps)"
    assert "corrected" not in Comparison(before, after).saving_text


def test_one_setting_saves_nothing_however_far_two_measurements_of_it_differ():
    assert not Comparison(trial(400, 4000.0), trial(400, 3000.0)).is_certain


@pytest.mark.parametrize(("before", "after"), [(2.0, 0.2), (0.2, 2.0)])
def test_trials_shorter_than_the_counter_resolves_tell_nothing(before, after):
    """A counter that moves by 10 J at a time cannot tell 1 J from 5 J."""
    long, short = trial(400, 400.0 * before, uncertainty=15.0), trial(300, 30.0 * after, uncertainty=15.0)
    comparison = Comparison(long, short)
    assert math.isinf(comparison.saving_uncertainty) == (after < 2.0)
    assert not Comparison(short, long).is_certain
    assert "±?" in str(Comparison(short, trial(200, 3.0, uncertainty=15.0)))


def test_a_single_step_has_no_known_scatter():
    comparison = Comparison(trial(400, 4000.0, steps=1), trial(300, 2000.0))
    assert math.isinf(comparison.saving_uncertainty)
    assert math.isinf(comparison.slowdown_uncertainty)
    assert not comparison.is_certain
    assert comparison.saving_text.startswith("not known")
    assert "%" not in comparison.saving_text


def test_no_energy_at_all_saves_nothing():
    assert not Comparison(trial(400, 0.0), trial(300, 0.0)).is_certain


def test_a_drift_shows_in_two_trials_at_the_chosen_setting():
    before, after = trial(400, 4000.0), trial(300, 3400.0, seconds=22.0)
    sure = Comparison(before, after)
    drifted = Comparison(before, after, trial(300, 3000.0, seconds=20.0))
    assert sure.saving_fraction == drifted.saving_fraction
    assert sure.is_certain
    assert 0.10 < drifted.saving_uncertainty < 0.11
    assert drifted.slowdown_uncertainty == pytest.approx(0.1)
    assert not Comparison(before, after, trial(300, 4100.0)).is_certain


@pytest.mark.parametrize("steps", [3, 10, 40])
def test_the_intervals_hold_the_truth_in_95_of_100_cases(steps):
    """Steps whose durations and powers scatter, measured by a counter whose reading is off by up to its uncertainty."""
    generator = random.Random(steps)
    watts, inside = 300.0, {"saving": 0, "slowdown": 0}

    def measured(setting, seconds, power):
        durations = [seconds * generator.gauss(1, 0.03) for _ in range(steps)]
        joules = sum(duration * power * generator.gauss(1, 0.01) for duration in durations)
        off = 0.02 * watts * steps * seconds
        return trial(
            setting,
            joules + generator.uniform(-off, off),
            steps=steps,
            seconds=sum(durations),
            uncertainty=off,
            deviation=statistics.stdev(durations),
        )

    for _ in range(500):
        comparison = Comparison(measured(400, 1.0, watts), measured(300, 1.1, 0.75 * watts))
        inside["saving"] += abs(comparison.saving_fraction - (1 - 1.1 * 0.75)) <= comparison.saving_uncertainty
        inside["slowdown"] += abs(comparison.slowdown_factor - 1.1) <= comparison.slowdown_uncertainty
    assert min(inside.values()) >= 0.95 * 500 - 3 * math.sqrt(500 * 0.05 * 0.95)


# Of a table of Student's distribution: 97.5 % of values are below, with one degree of freedom less than values.
@pytest.mark.parametrize(
    ("count", "quantile"),
    [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (6, 2.571), (11, 2.228), (31, 2.042), (1001, 1.962)],
)
def test_the_mean_of_some_values_is_off_by_what_student_says(count, quantile):
    values = [(-1.0) ** number for number in range(count)]
    expected = quantile * statistics.stdev(values) / math.sqrt(count)
    assert mean_uncertainty(values) == pytest.approx(expected, rel=1e-9 if count <= 3 else 0.01)


def test_the_mean_of_a_single_value_may_be_off_by_anything():
    assert mean_uncertainty([1.0]) == math.inf
