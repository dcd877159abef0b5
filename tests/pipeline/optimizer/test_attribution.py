"""The power of each kind of work, from a counter that steps less often than the work changes."""

import math
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_core.attribution.updates import Knot
from zeus_core.pipeline.profile._attribution import WAITING, mean_powers
from zeus_core.pipeline.profile.step_timeline import Span

WATTS = {"forward": 310.0, "backward": 370.0, "optimizer-step": 150.0, WAITING: 85.0}


class Trace:
    """The work of a GPU, and its exact energy."""

    def __init__(self, seed=0, start_seconds=1000.0):
        self.random = np.random.default_rng(seed)
        self.seconds, self.joules = [start_seconds], [0.0]
        self.spans, self.known = [], []

    def work(self, what, seconds, watts):
        begin = self.seconds[-1]
        self.seconds.append(begin + seconds)
        self.joules.append(self.joules[-1] + watts * seconds)
        if what != WAITING:
            self.spans.append(Span(what, begin, self.seconds[-1]))

    def train(self, steps, seconds, watts=WATTS):
        """Some steps, all of which are known; times scatter."""
        begin = self.seconds[-1]
        for _, what in zip(range(steps * len(seconds)), cycle(seconds), strict=False):
            self.work(what, seconds[what] * self.random.uniform(0.8, 1.2), watts[what])
        self.known.append(Span(None, begin, self.seconds[-1]))

    def counter(self, period_seconds, uncertainty_seconds=0.0):
        """The steps of an energy counter, each seen too early or too late by as much at most."""
        at = np.arange(self.seconds[0] + 0.37 * period_seconds, self.seconds[-1], period_seconds)
        seen = at + self.random.uniform(-uncertainty_seconds, uncertainty_seconds, len(at))
        joules = np.interp(at, self.seconds, self.joules)
        return [
            Knot(moment, uncertainty_seconds, energy)
            for moment, energy in zip(seen.tolist(), joules.tolist(), strict=True)
        ]

    def powers(self, steps):
        return mean_powers(steps, self.spans, self.known)


def check_exact(powers, **watts):
    assert {name: power.watts for name, power in powers.items()} == pytest.approx(watts, rel=1e-6)


kinds = st.dictionaries(
    st.sampled_from(["forward", "backward", "recompute", "optimizer-step", WAITING]),
    st.tuples(st.floats(0.005, 0.08), st.floats(40.0, 700.0)),
    min_size=2,
)


@settings(max_examples=60)
@given(kinds, st.sampled_from([0.02, 0.1]), st.integers(0, 2**32))
def test_powers_are_within_their_stated_errors_of_the_truth(kinds, period_seconds, seed):
    trace = Trace(seed)
    steps = math.ceil(400 * period_seconds / sum(seconds for seconds, _ in kinds.values()))
    watts = {name: power for name, (_, power) in kinds.items()}
    trace.train(steps, {name: seconds for name, (seconds, _) in kinds.items()}, watts)
    found = trace.powers(trace.counter(period_seconds, uncertainty_seconds=0.0005))
    assert found.keys() - {WAITING} == kinds.keys() - {WAITING}
    for name, power in watts.items():
        assert found[name].watts == pytest.approx(power, abs=7 * found[name].stderr_watts + 1e-6 * power)


@pytest.mark.parametrize("period_seconds", [0.02, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_half_a_minute_tells_powers_within_one_percent(period_seconds, seed):
    trace = Trace(seed)
    trace.train(100, {"forward": 0.03, WAITING: 0.04, "backward": 0.06, "optimizer-step": 0.17})
    found = trace.powers(trace.counter(period_seconds, uncertainty_seconds=0.0005))
    for name, watts in WATTS.items():
        assert found[name].watts == pytest.approx(watts, rel=0.01)
        assert found[name].stderr_watts < 0.01 * watts


@pytest.mark.parametrize("start_seconds", [0.0, 1e3, 1e7])
def test_it_does_not_matter_for_how_long_the_machine_has_been_up(start_seconds):
    trace = Trace(start_seconds=start_seconds)
    trace.train(60, {"forward": 0.03, "backward": 0.06})
    found = trace.powers(trace.counter(0.1))
    assert found.keys() == {"forward", "backward"}, "it never waits"
    assert found["backward"].watts == pytest.approx(370.0, rel=1e-4)


def test_intervals_that_reach_into_unknown_times_do_not_count():
    trace = Trace()
    seconds = {"forward": 0.03, WAITING: 0.02, "backward": 0.06}
    trace.train(40, seconds)
    trace.work(WAITING, 3.21, 700.0)  # whatever it was
    trace.train(40, seconds)
    trace.work("evaluation", 1.0, 600.0)
    check_exact(trace.powers(trace.counter(0.1)), forward=310.0, waiting=85.0, backward=370.0)


def test_intervals_in_which_work_was_held_up_do_not_count():
    trace = Trace()
    seconds = {"forward": 0.03, WAITING: 0.02, "backward": 0.06}
    trace.train(40, seconds)
    trace.train(1, {"backward": 0.6}, watts={"backward": 120.0})
    held_up = trace.spans[-1:]
    trace.train(40, seconds)
    powers = mean_powers(trace.counter(0.1), trace.spans, trace.known, held_up)
    check_exact(powers, forward=310.0, waiting=85.0, backward=370.0)


def test_steps_that_were_missed_make_longer_intervals():
    trace = Trace()
    trace.train(60, {"forward": 0.03, WAITING: 0.02, "backward": 0.06})
    steps = trace.counter(0.1)
    check_exact(trace.powers(steps[:20] + steps[27:]), forward=310.0, waiting=85.0, backward=370.0)


def test_steps_whose_time_is_too_unsure_are_passed_over():
    trace = Trace()
    trace.train(60, {"forward": 0.03, WAITING: 0.02, "backward": 0.06})
    steps = trace.counter(0.1)
    for place in (7, 8, 20):  # stalled polls
        steps[place] = steps[place]._replace(at=steps[place].at - 0.03, half_width_seconds=0.03)
    check_exact(trace.powers(steps), forward=310.0, waiting=85.0, backward=370.0)


def test_a_counter_that_begins_anew_spoils_one_interval_only():
    trace = Trace()
    trace.train(60, {"forward": 0.03, WAITING: 0.02, "backward": 0.06})
    steps = trace.counter(0.1)
    lost = steps[30].energy_joules
    steps[30:] = [update._replace(energy_joules=update.energy_joules - lost) for update in steps[30:]]
    check_exact(trace.powers(steps), forward=310.0, waiting=85.0, backward=370.0)


def test_work_that_was_never_seen_is_left_out():
    trace = Trace()
    trace.work("warmup", 0.5, 200.0)
    trace.train(60, {"forward": 0.03, "backward": 0.06})
    assert trace.powers(trace.counter(0.1)).keys() == {"forward", "backward"}


def test_work_that_is_told_from_no_other_has_no_power():
    trace = Trace()
    for _ in range(50):  # as often as the counter steps
        trace.work("forward", 0.04, 310.0)
        trace.work("backward", 0.06, 370.0)
    trace.known.append(Span(None, trace.seconds[0], trace.seconds[-1]))
    assert trace.powers(trace.counter(0.1)) == {}


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_too_few_intervals_tell_nothing(count):
    trace = Trace()
    trace.train(10, {"forward": 0.03, "backward": 0.06})
    assert trace.powers(trace.counter(0.1)[:count]) == {}


def test_without_a_time_that_is_known_nothing_is():
    trace = Trace()
    trace.train(20, {"forward": 0.03, "backward": 0.06})
    steps = trace.counter(0.1)
    assert mean_powers(steps, trace.spans, []) == {}
    found = mean_powers(steps, [], trace.known)
    assert found.keys() == {WAITING}
    assert 310.0 < found[WAITING].watts < 370.0


def test_a_kind_that_took_almost_no_time_does_not_disturb_the_others():
    trace = Trace()
    seconds = {"forward": 0.03, WAITING: 0.02, "recompute": 1e-10, "backward": 0.06}
    trace.train(60, seconds, {**WATTS, "recompute": 300.0})
    found = trace.powers(trace.counter(0.1, uncertainty_seconds=0.0005))
    for name in ("forward", "backward", WAITING):
        assert found[name].watts == pytest.approx(WATTS[name], rel=0.02)


@pytest.mark.parametrize(("uncertainty_seconds", "tolerance"), [(0.001, 0.01), (0.003, 0.02), (0.006, 0.04)])
@pytest.mark.parametrize("period_seconds", [0.02, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_powers_are_found_with_a_driver_that_takes_milliseconds_to_answer(
    uncertainty_seconds, tolerance, period_seconds, seed
):
    trace = Trace(seed)
    trace.train(50, {"forward": 0.06, "backward": 0.12, WAITING: 0.08})
    found = trace.powers(trace.counter(period_seconds, uncertainty_seconds))
    for name, power in found.items():
        assert power.watts == pytest.approx(WATTS[name], rel=tolerance)
