"""The filter of what parts draw of their own, against sums and powers that are known."""

import math
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_core.monitor._parts._class_energy import ClassEnergy
from zeus_core.monitor._parts._part import Part, Piece
from zeus_core.monitor._parts._power_kinds import KINDS
from zeus_core.monitor._parts._power_samples import Sampled
from zeus_core.monitor._parts._power_state import MAX_SLOTS

PERIOD_SECONDS = 0.1


def intervals(parts, lag_seconds=0.0, noise=0.0, seed=0):
    """Yield the energy and the parts between updates, from parts of (class, watts, seconds)."""
    generator = random.Random(seed)
    followed = parts[0][1]
    joules, inside, left = 0.0, [], PERIOD_SECONDS
    for key, watts, seconds in parts:
        while seconds > 1e-12:
            took = min(seconds, left)
            kept = math.exp(-took / lag_seconds) if lag_seconds else 0.0
            joules += watts * took + lag_seconds * (followed - watts) * (1 - kept)
            followed = watts + (followed - watts) * kept
            if inside and inside[-1][0] == key:
                inside[-1] = key, inside[-1][1] + took
            else:
                inside.append((key, took))
            seconds, left = seconds - took, left - took
            if left <= 1e-12:
                yield joules * (1 + noise * generator.gauss(0, 1)), [Part(k, [Piece(s)]) for k, s in inside]
                joules, inside, left = 0.0, [], PERIOD_SECONDS


def alternating(generator, count, watts_of):
    return [
        (key, watts_of(key), generator.uniform(2.2, 4.0) * PERIOD_SECONDS)
        for _ in range(count)
        for key in ("steps", "evaluation")
    ]


def told(told_intervals):
    classes = ClassEnergy(600.0, "steps")
    joules = dict.fromkeys(("steps", "evaluation"), 0.0)
    for energy, parts in told_intervals:
        classes.add(energy, parts, (1e-4, 1e-4))
        joules["sum"] = joules.get("sum", 0.0) + energy
    return {key: classes.estimate(key) for key in ("steps", "evaluation")}, joules["sum"], classes


@pytest.mark.parametrize("lag_seconds", [0.0, 0.015, 0.03])
def test_parts_that_draw_a_power_of_their_own_are_told_apart(lag_seconds):
    """A regression on classes alone is off by what parts differ at each edge: 0.5 to 2 % here."""
    generator = random.Random(3)
    parts = alternating(generator, 40, lambda _: generator.uniform(100, 500))
    estimates, counted, _ = told(intervals(parts, lag_seconds))
    of_intervals = sum(estimate.energy_joules for estimate in estimates.values())
    assert of_intervals == pytest.approx(counted, rel=1e-3)
    truth, followed = {"steps": 0.0, "evaluation": 0.0}, parts[0][1]
    left = counted
    for key, watts, seconds in parts:
        kept = math.exp(-seconds / lag_seconds) if lag_seconds else 0.0
        joules = min(watts * seconds + lag_seconds * (followed - watts) * (1 - kept), left)
        followed = watts + (followed - watts) * kept
        truth[key] += joules
        left -= joules
    for key, estimate in estimates.items():
        assert abs(estimate.energy_joules - truth[key]) <= estimate.uncertainty_joules
        assert estimate.uncertainty_joules <= 0.006 * truth[key]


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.02]))
def test_classes_add_up_to_what_was_counted(seed, noise):
    generator = random.Random(seed)
    power = {"steps": generator.uniform(200, 500), "evaluation": generator.uniform(60, 300)}
    parts = alternating(generator, generator.randint(2, 25), power.__getitem__)
    estimates, counted, _ = told(intervals(parts, noise=noise, seed=seed))
    off = sum(estimate.uncertainty_joules for estimate in estimates.values())
    assert abs(sum(estimate.energy_joules for estimate in estimates.values()) - counted) <= 0.2 * off + 0.1


def test_its_state_does_not_grow():
    generator = random.Random(5)
    parts = alternating(generator, 60, lambda _: generator.uniform(100, 500))
    *_, classes = told(intervals(parts[:24]))
    size = classes._filter._covariance.shape
    *_, classes = told(intervals(parts))
    assert classes._filter._covariance.shape[2:] == size[2:]
    assert classes._filter._covariance.shape[0] <= size[0] < len(KINDS), "kinds that are unlikely are dropped"
    assert np.isfinite(classes._filter._covariance).all()


def test_an_interval_of_thousands_of_steps_takes_no_more_room_than_one_of_a_few():
    """As a driver that hangs for minutes leaves it. Each step had a place of its own: gigabytes for ten minutes."""
    classes = ClassEnergy(600.0, "steps")
    step = [Piece(0.006, phase) for phase in range(1, 11)]
    for count in (2, 2, 6000, 2, 2):
        classes.add(300.0 * 0.06 * count, [Part("steps", step * count)], (1e-4, 1e-4))
    many = [Part(key, [Piece(0.01)]) for _ in range(3000) for key in ("steps", "evaluation")]
    classes.add(300.0 * 60, many, (1e-4, 1e-4))
    assert classes._filter.most_slots <= 2 * MAX_SLOTS  # with those of the interval before it
    assert classes.estimate("steps").energy_joules + classes.estimate("evaluation").energy_joules == pytest.approx(
        300.0 * (0.06 * 6008 + 60), rel=1e-3
    )


def test_a_span_that_is_over_keeps_its_energy():
    classes = ClassEnergy(600.0, "steps")

    def add(key, span, watts):
        classes.add(watts * PERIOD_SECONDS, [Part(key, [Piece(PERIOD_SECONDS)], span)], (1e-4, 1e-4))

    for span, watts in ((1, 300.0), (2, 150.0)):
        for _ in range(6):
            add("steps", None, 400.0)
        for _ in range(5):
            add("evaluation", span, watts)
    for _ in range(30):
        add("steps", None, 400.0)
    assert classes.estimate(1).energy_joules == pytest.approx(150.0, rel=0.01)
    assert classes.estimate(2).energy_joules == pytest.approx(75.0, rel=0.01)
    classes.forget(1)
    assert classes.estimate(1).energy_joules == 0


def merged(hidden):
    """The energy and the parts of some intervals, as one."""
    parts = []
    for part in (part for _, inside in hidden for part in inside):
        if parts and parts[-1].key == part.key:
            parts[-1] = Part(part.key, [*parts[-1].pieces, *part.pieces])
        else:
            parts.append(part)
    return sum(energy for energy, _ in hidden), parts


def with_hidden(seed, watts_of, was_lost, sampled=lambda parts: [None] * len(parts)):
    """What is told of a training of which two seconds are hidden, with their energy, and the truth."""
    generator = random.Random(seed)
    truth = {"steps": 0.0, "evaluation": 0.0}
    parts = alternating(generator, 30, lambda key: watts_of(generator, key))
    for key, watts, seconds in parts:
        truth[key] += watts * seconds
    known = list(intervals(parts))
    energy, hidden = merged(known[80:100])
    classes = ClassEnergy(600.0, "steps")
    for joules, inside in known[:80]:
        classes.add(joules, inside, (1e-4, 1e-4))
    told_of, is_lost = classes.add_hidden(
        0.0 if was_lost else energy, hidden, sampled(hidden), (1e-4, 1e-4), lambda _: was_lost
    )
    assert is_lost == was_lost
    for joules, inside in known[100:]:
        classes.add(joules, inside, (1e-4, 1e-4))
    return classes, energy, told_of, truth


@pytest.mark.parametrize("seed", range(4))
def test_what_a_counter_has_lost_is_told_by_what_parts_draw(seed):
    power = {"steps": 400.0, "evaluation": 150.0}
    classes, energy, told_of, _ = with_hidden(seed, lambda generator, key: power[key], was_lost=True)
    lost = classes.lost()
    assert abs(lost.energy_joules - energy) <= lost.uncertainty_joules <= 0.1 * energy
    assert sum(told_of.values()) == pytest.approx(energy, rel=0.05)


def test_parts_that_are_hidden_are_as_unlike_as_those_that_are_not():
    """Where there was little noise, they were taken for more alike than others: 21 % outside, now 7 %."""
    outside = 0
    for seed in range(20):
        classes, energy, *_ = with_hidden(seed, lambda generator, _: generator.uniform(100, 500), was_lost=True)
        lost = classes.lost()
        outside += abs(lost.energy_joules - energy) > lost.uncertainty_joules
    assert outside <= 2


@pytest.mark.parametrize("seed", range(4))
def test_hidden_parts_add_up_to_their_sum(seed):
    classes, energy, told_of, truth = with_hidden(seed, lambda generator, _: generator.uniform(100, 500), False)
    assert classes.lost().energy_joules == classes.lost().uncertainty_joules == 0
    assert sum(told_of.values()) == pytest.approx(energy)
    for key, joules in truth.items():
        estimate = classes.estimate(key)
        # What comes after the last update is not known.
        assert abs(estimate.energy_joules - joules) <= estimate.uncertainty_joules + 500.0 * PERIOD_SECONDS
        assert estimate.uncertainty_joules <= 0.1 * joules


def test_samples_of_the_power_tell_of_hidden_parts_what_others_do_not():
    def sampled(parts):
        return [Sampled(500.0 * part.seconds, 5.0 * part.seconds, 20, 0.0, 0.0) for part in parts]

    def watts(generator, key):
        return 300.0

    *_, told_of, _ = with_hidden(0, watts, was_lost=True, sampled=sampled)
    without, told_by_others = with_hidden(0, watts, was_lost=True)[1:3]
    assert sum(told_by_others.values()) == pytest.approx(without, rel=0.02)
    assert sum(told_of.values()) == pytest.approx(without * 5 / 3, rel=0.1)


def test_a_fault_of_minutes_takes_no_more_room_than_one_of_seconds():
    classes = ClassEnergy(600.0, "steps")
    for _ in range(20):
        for key in ("steps", "evaluation"):
            classes.add(30.0, [Part(key, [Piece(0.1)])], (1e-4, 1e-4))
    step = [Piece(0.006, phase) for phase in range(1, 11)]
    classes.add_hidden(0.0, [Part("steps", step * 6000)], [None], (1e-4, 1e-4), lambda _: True)
    many = [Part(key, [Piece(0.01)]) for _ in range(300) for key in ("steps", "evaluation")]
    classes.add_hidden(0.0, many, [None] * len(many), (1e-4, 1e-4), lambda _: True)
    assert classes._filter.most_slots <= 3 * MAX_SLOTS  # with those of the time before it
    assert classes.lost().energy_joules == pytest.approx(300.0 * (360 + 6), rel=0.05)


def learnt():
    classes = ClassEnergy(600.0, "steps")
    for _ in range(12):
        classes.add(30.0, [Part("steps", [Piece(0.06)]), Part("idle", [Piece(0.04)])], (1e-4, 1e-4))
    return classes


def test_of_a_class_that_samples_tell_in_part_all_time_is_told():
    """Before only the parts that were sampled were, and the others counted as 0 J, and not as lost."""
    parts = [Part("evaluation", [Piece(1.0)]), Part("steps", [Piece(0.1)]), Part("evaluation", [Piece(0.1)])]
    sampled = [Sampled(400.0, 4.0, 10, 0.0, 0.0), None, None]
    evaluation = learnt().tell(parts, sampled, do_follow=True)["evaluation"]
    assert abs(evaluation.energy_joules - 440.0) <= evaluation.uncertainty_joules
    assert evaluation.energy_joules > 410.0
    classes = learnt()
    expected = []
    joules, was_lost = classes.add_hidden(0.0, parts, sampled, (1e-4, 1e-4), lambda joules: not expected.append(joules))
    assert was_lost
    assert expected[0] == pytest.approx(sum(joules.values()))
    assert classes.is_seen("evaluation")


def test_samples_of_a_fault_make_no_later_interval_a_long_one():
    """Before they counted as intervals of no time: each of the next 39 usual ones was taken to hide parts."""
    classes = learnt()
    parts = [Part(key, [Piece(0.35)]) for _ in range(50) for key in ("steps", "idle")]
    sampled = [Sampled(100.0, 4.0, 3, 0.0, 0.0)] * 100
    classes.add_hidden(0.0, parts, sampled, (1e-4, 1e-4), lambda _: True)
    usual = [Part("steps", [Piece(0.06)]), Part("idle", [Piece(0.04)])]
    assert not classes.hides_parts(usual, [None, None])
    assert classes.hides_parts([Part("steps", [Piece(0.3)]), Part("idle", [Piece(0.2)])], [None, None])


def test_a_long_interval_proves_as_little_of_old_values_as_a_usual_one():
    """Before the bounds of hidden parts were too tight by what a value of the counter may be late."""
    parts = [Part("steps", [Piece(0.65)]), Part("idle", [Piece(0.02)])]
    bounds = []
    for is_hidden in (False, True):
        classes = learnt()
        classes.age_seconds = 0.005
        before = classes._sums["steps"].min_joules
        if is_hidden:
            classes.add_hidden(390.0, parts, [None, None], (1e-4, 1e-4), lambda _: False)
        else:
            classes.add(390.0, parts, (1e-4, 1e-4))
        bounds.append(classes._sums["steps"].min_joules - before)
    assert bounds[0] == bounds[1] > 0


def test_a_span_that_is_forgotten_before_it_is_over_leaves_nothing():
    classes = ClassEnergy(600.0, "steps")
    for span in range(20):
        classes.add(30.0, [Part("steps", [Piece(0.06)]), Part("evaluation", [Piece(0.04)], span)], (1e-4, 1e-4))
        classes.forget(span)
    assert not [key for key in (*classes._filter._sums, *classes._filter._over, *classes._sums) if isinstance(key, int)]


def test_nothing_follows_where_nothing_is_known_before():
    """Before, the power of the time that was added last passed into any other time that was to be told."""
    evaluation_after = [learnt(), learnt()]
    evaluation_after[1].add(30.0, [Part("idle", [Piece(0.04)]), Part("steps", [Piece(0.06)])], (1e-4, 1e-4))
    rows = [
        classes._columns.peek([[Part("steps", [Piece(0.05)])]], do_follow=False)[0]["steps"]
        for classes in evaluation_after
    ]
    assert (rows[0] == rows[1]).all()


LAST_BITS = """
from zeus_core.monitor._parts._class_energy import ClassEnergy
from zeus_core.monitor._parts._part import Part, Piece
classes = ClassEnergy(600.0, "steps")
names = ["steps", "idle", "evaluation", "checkpoint"]
for n in range(60):
    parts = [Part(key, [Piece(0.013 + 0.007 * ((n * 7 + i * 3) % 5))], n // 9) for i, key in enumerate(names)]
    told = classes.add(17.3 + 0.9 * (n % 4), parts, (1e-4, 1e-4))
print(sorted(told.items()), [classes.estimate(key) for key in names], classes.total_seconds)
"""


def test_the_order_of_a_set_changes_no_bit():
    told = {
        subprocess.run(
            [sys.executable, "-c", LAST_BITS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "2", "3")
    }
    assert len(told) == 1
