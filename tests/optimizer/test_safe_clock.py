"""The clock that keeps a slowdown bound for any work, without a measurement of time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.device import Work, find_preset
from zeus_core.device.simulated.presets import PRESETS
from zeus_core.measurement import Measurement
from zeus_core.search import Trial
from zeus_core.search.run.run_plan import Prediction
from zeus_core.search.run.run_search import Block
from zeus_core.search.run.safe_clock import SafeClock

CLOCKS = range(1410, 210, -15)


class Scripted:
    """A search that does as it is told."""

    def __init__(self, choice=None, is_done=True, stepped_aside=None, savings=None):
        self.choice, self.is_done, self.stepped_aside, self.cost = choice, is_done, stepped_aside, None
        self.savings = savings or {}
        self.told = []

    def ask(self):
        return Block(self.choice or 1410, 20, is_choice=self.is_done)

    def may_continue(self, steps, seconds):
        return False

    def tell(self, trial, run_steps, run_seconds):
        self.told.append(trial)

    def prediction(self, setting=None):
        setting = setting or self.choice
        if setting not in self.savings:
            return None
        saving = self.savings[setting]
        return Prediction(setting, saving, (saving - 0.01, saving + 0.01), 1.0, (1.0, 1.0))


def baseline(clock_mhz, steps=10, lowest_mhz=None, deviation=0.0):
    measurement = Measurement.from_energies(0.5 * steps, {0: 2000.0})
    return Trial(1410, steps, measurement, deviation, lowest_mhz or clock_mhz, clock_mhz)


def told(search, *trials):
    safe = SafeClock(search, CLOCKS, 1.1)
    for trial in trials:
        safe.tell(trial, 10, 5.0)
    return safe


@given(
    preset=st.sampled_from(sorted(PRESETS)),
    work=st.builds(
        Work, st.just(0.5), st.floats(60.0, 900.0), st.floats(0.05, 1.0), st.floats(0.0, 1.0)
    ),
    limit_share=st.floats(0.0, 1.0),
    factor=st.floats(1.0, 2.0),
)  # fmt: skip
def test_it_keeps_the_bound_for_any_work_board_and_limit(preset, work, limit_share, factor):
    gpu = find_preset(preset)
    lowest, highest = gpu.limit_range_watts
    limit_watts = lowest + limit_share * (highest - lowest)
    free = gpu.physics.operating_point(work, limit_watts)
    clocks = range(gpu.highest_clock_mhz, gpu.lowest_clock_mhz - 1, -gpu.clock_step_mhz)
    search = SafeClock(Scripted(clocks[0]), clocks, factor)
    trial = Trial(clocks[0], 5, Measurement.from_energies(5.0, {0: 1.0}), 0.0, *[free.clock_fraction * clocks[0]] * 2)
    search.tell(trial, 5, 5.0)
    safe = search.ask().setting
    at_safe = gpu.physics.operating_point(work, limit_watts, safe / clocks[0])
    assert at_safe.seconds <= factor * free.seconds * (1 + 1e-9)


def test_a_run_too_short_for_a_search_continues_at_the_safe_clock():
    search = told(Scripted(1410, stepped_aside="too short"), baseline(1320.0))
    assert search.ask() == Block(1200, 20, is_choice=True)
    assert search.choice == 1200
    assert search.stepped_aside is None
    assert search.may_continue(1000, 1e6), "no measurement of time can tell otherwise"


@pytest.mark.parametrize("choice", [1200, 1005])
def test_a_choice_that_is_as_low_or_lower_stays(choice):
    assert told(Scripted(choice), baseline(1320.0)).ask().setting == choice


def test_a_higher_choice_stays_only_if_it_certainly_saves_more():
    alike = Scripted(1305, savings={1305: 0.05, 1200: 0.045})
    assert told(alike, baseline(1320.0)).choice == 1200
    better = Scripted(1305, savings={1305: 0.05, 1200: 0.02})
    assert told(better, baseline(1320.0)).choice == 1305


def test_a_search_under_way_is_left_alone():
    search = told(Scripted(None, is_done=False), baseline(1320.0))
    assert search.ask() == Block(1410, 20, is_choice=False)
    assert not search.may_continue(5, 5.0)


@pytest.mark.parametrize("clocks", [[], [None], [1410.0 * 1.1]])
def test_without_a_known_clock_or_with_none_to_gain_nothing_changes(clocks):
    scripted = Scripted(1410, stepped_aside="too short")
    search = told(scripted, *map(baseline, clocks))
    assert search.safe_mhz is None
    assert search.ask().setting == 1410
    assert search.stepped_aside == "too short"
    assert len(scripted.told) == len(clocks)


def test_blocks_at_other_clocks_do_not_count_for_the_unlocked_clock():
    assert told(Scripted(), baseline(1300.0, 30), baseline(1340.0, 10)).safe_mhz == 1200
    assert (
        told(Scripted(), baseline(1300.0, 30), Trial(900, 90, baseline(1.0).measurement, 0.0, 900.0, 900.0)).safe_mhz
        == 1185
    )


def at_level(seconds_per_step, steps=10, deviation=0.0):
    return Trial(1110, steps, Measurement.from_energies(seconds_per_step * steps, {0: 1500.0}), deviation)


def test_the_slowest_gpus_clock_is_tried_once_and_chosen_if_steps_fit():
    search = told(Scripted(1410, stepped_aside="too short"), baseline(1320.0, lowest_mhz=1215.0))
    assert (search.safe_mhz, search.level_mhz) == (1200, 1110)
    assert not search.is_done
    assert search.ask() == Block(1110, 20, is_choice=False)
    search.tell(at_level(0.5 * 1.1), 20, 10.0)
    assert search.is_done
    assert search.ask() == Block(1110, 20, is_choice=True)


def test_it_is_not_kept_if_the_gpus_do_different_work():
    search = told(Scripted(1410), baseline(1320.0, lowest_mhz=1215.0))
    search.tell(at_level(0.5 * 1.13), 20, 10.0)
    assert search.ask() == Block(1200, 20, is_choice=True)


@pytest.mark.parametrize(("lowest_mhz", "deviation"), [(1310.0, 0.0), (1215.0, 0.05)])
def test_it_is_not_tried_if_gpus_or_trials_would_hardly_differ(lowest_mhz, deviation):
    search = told(Scripted(1410), baseline(1320.0, lowest_mhz=lowest_mhz, deviation=deviation))
    assert search.ask() == Block(1200, 20, is_choice=True)
