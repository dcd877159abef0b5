"""The choice of a setting for each rank, on the physics of simulated boards that differ."""

import dataclasses
import functools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.mixed.levelling._leveller import Leveller, mean_longest
from zeus_core.testing import VirtualTime

RANKS = 8
WORK = Work(0.5, 480.0, 1.0, 0.85)
MEMORY_BOUND = Work(0.5, 480.0, 1.0, 0.3)


class Boards:
    """Eight A100 whose speeds under one limit differ by 8 %, and what a step takes on them."""

    def __init__(self, seed=1, scatter=0.0, work=WORK, clocks=True, budget=None):
        noise = SimulatedNoise(0, 0, seed=seed, board_spread=0.12)
        preset = find_preset("A100")
        self.gpus = [SimulatedGpu(preset, rank, time_source=VirtualTime(), noise=noise) for rank in range(RANKS)]
        self.random, self.scatter, self.work, self.clocks = random.Random(seed), scatter, work, clocks
        self.top_mhz = preset.highest_clock_mhz
        limits = tuple(range(400, 95, -5))
        clocks_mhz = sorted(self.gpus[0].read_supported_sm_clocks_mhz(), reverse=True)
        self.first = clocks_mhz[0] if clocks else 400
        self.leveller = Leveller([clocks_mhz if clocks else limits] * RANKS, not clocks, budget)
        self.usual = [self.first] * RANKS
        self.slow = [1.0] * RANKS
        self.times, self.energies = [], []  # of each step, as a share of those at the usual settings
        self.point = functools.cache(self.point)

    def points(self, settings):
        return [self.point(*about) for about in zip(range(RANKS), settings, self.slow, strict=True)]

    def point(self, rank, setting, slow):
        work = dataclasses.replace(self.work, seconds=self.work.seconds * slow)
        limit, share = (400.0, setting / self.top_mhz) if self.clocks else (float(setting), 1.0)
        return self.gpus[rank]._own_operating_point(work, limit, share)

    def seconds_and_joules(self, points, own):
        longest = max(own)
        parts = zip(points, own, strict=True)
        joules = sum(
            point.active_power_watts * seconds + (longest - seconds) * point.blocking_power_watts
            for point, seconds in parts
        )
        return longest, joules

    def step(self):
        scatter = [max(1 + self.random.gauss(0, self.scatter), 0.5) for _ in range(RANKS)]
        results = []
        for used in (self.leveller.settings, self.usual):
            points = self.points(used)
            own = [point.seconds * factor for point, factor in zip(points, scatter, strict=True)]
            results.append((*self.seconds_and_joules(points, own), points, own))
        (seconds, joules, points, own), (usual_seconds, usual_joules, *_) = results
        self.times.append(seconds / usual_seconds)
        self.energies.append(joules / usual_joules)
        clocks = [self.top_mhz * point.clock_fraction for point in points] if self.clocks else None
        return self.leveller.add_step(own, clocks)

    def run(self, steps):
        """Return the steps after which settings have changed."""
        return [step for step in range(steps) if self.step()]

    def mean(self, values, steps=100):
        return sum(values[-steps:]) / steps


def waiting(boards):
    own = [point.seconds for point in boards.points(boards.leveller.settings)]
    return 1 - sum(own) / len(own) / max(own)


@pytest.mark.parametrize("scatter", [0.0, 0.002, 0.005])
@pytest.mark.parametrize(
    ("clocks", "least"),
    [(True, {0.0: 0.945, 0.002: 0.948, 0.005: 0.955}), (False, {0.0: 0.94, 0.002: 0.945, 0.005: 0.952})],
    ids=["clocks", "limits"],
)
def test_quick_boards_no_longer_wait_and_steps_are_as_long_as_before(scatter, clocks, least):
    """Where nothing scatters, it saves what any settings can; see `benchmarks/levelling.py`."""
    for seed in (1, 2):
        boards = Boards(seed, scatter, clocks=clocks)
        changes = boards.run(300)
        assert boards.mean(boards.times, 300) <= 1.002
        assert boards.mean(boards.energies) <= least[scatter]
        assert len(changes) <= 12
        if scatter == 0:
            assert waiting(boards) <= 0.01


@pytest.mark.parametrize("clocks", [True, False])
def test_others_follow_a_slow_rank_in_ten_steps_and_return_in_five(clocks):
    boards = Boards(scatter=0.003, clocks=clocks)
    boards.run(150)
    level = boards.leveller.settings
    boards.slow[3] = 1.2
    boards.run(10)
    assert all(new < old for new, old in zip(boards.leveller.settings, level, strict=True) if old != level[3])
    energy = boards.energies[-1]
    assert energy < boards.mean(boards.energies[:-10], 50) - 0.05
    boards.run(60)
    assert boards.mean(boards.times, 60) <= 1.002
    assert energy - boards.energies[-1] < 0.25 * (1 - boards.energies[-1]), "in ten steps most of it was done"
    boards.slow[3] = 1.0
    boards.run(5)
    boards.run(20)
    assert boards.mean(boards.times, 20) <= 1.002
    boards.run(150)
    assert boards.mean(boards.times, 100) <= 1.002


@pytest.mark.parametrize(
    ("scatter", "steps"), [(0.01, 1000), *(pytest.param(one, 6600, marks=pytest.mark.long) for one in (0.002, 0.01))]
)
def test_settings_seldom_change_when_nothing_else_does(scatter, steps):
    """An hour of steps of half a second: by the logarithm of their number, not by a share of them."""
    boards = Boards(scatter=scatter)
    early, late = boards.run(600), boards.run(steps)
    assert len(early) <= 12
    assert len(late) <= 12


def test_a_stray_step_and_a_batch_longer_for_all_change_nothing():
    boards = Boards(scatter=0.002)
    boards.run(400)
    before = boards.leveller.settings
    for step in range(60):
        boards.slow = [2.0 if step == 10 and rank == 1 else 1.0 + 0.3 * (step % 2) for rank in range(RANKS)]
        assert not boards.step()
    assert boards.leveller.settings == before


def test_work_that_waits_for_memory_goes_lower_by_measured_time():
    boards = Boards(work=MEMORY_BOUND)
    boards.run(200)
    assert boards.mean(boards.times, 200) <= 1.002
    assert waiting(boards) <= 0.012


@pytest.mark.parametrize("seed", [24, 48, 73])
def test_no_draw_of_steps_that_scatter_misleads_it(seed):
    """Here the first steps at a lower clock are quick by chance. Taken at their word, they cost up to 19 %."""
    generator, lead = random.Random(seed), np.arange(8) / 100
    leveller = Leveller([range(1980, 600, -15)] * 8)
    ours = usual = 0.0
    for _ in range(300):
        own = (1 - lead) * (0.15 + 0.85 * 1980 / np.array(leveller.settings))
        assert own.max() <= 1.01
        factors = np.array([generator.gauss(1, 0.01) for _ in lead])
        ours, usual = ours + (own * factors).max(), usual + ((1 - lead) * factors).max()
        leveller.add_step(list(own * factors))
    assert ours <= 1.002 * usual


def test_a_rank_that_slows_down_by_more_than_predicted_is_undone():
    """As boards do that throttle, or that come to the end of their range of voltages."""
    quickest, generator = [1.0, 0.95, 0.93, 0.97], random.Random(1)
    leveller, longest = Leveller([range(1410, 200, -15)] * 4), []
    for _ in range(120):
        steeper = [1.03 if rank == 1 and mhz < 1400 else 1.0 for rank, mhz in enumerate(leveller.settings)]
        own = [a * b * (1410 / mhz) for a, b, mhz in zip(quickest, steeper, leveller.settings, strict=True)]
        longest.append(max(own))
        leveller.add_step([one * generator.gauss(1, 0.002) for one in own])
    assert max(longest[60:]) <= 1.002
    assert leveller.settings[2] < 1350, "the others are levelled"


@pytest.mark.parametrize("watts", [360, 300, 200])
def test_a_budget_is_divided_so_that_all_are_equally_fast(watts):
    boards = Boards(clocks=False, budget=RANKS * watts, scatter=0.002)
    boards.usual = [watts] * RANKS
    for _ in range(600):
        boards.step()
        assert sum(boards.leveller.settings) <= RANKS * watts
    assert boards.mean(boards.times) <= 0.97
    assert boards.mean(boards.energies) <= 1.0


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_all_settings_are_possible_ones_whatever_the_times(data):
    ranks = data.draw(st.integers(2, 5))
    grid = tuple(range(1410, 200, -15))
    budget = data.draw(st.sampled_from([None, ranks * 300, ranks * 1000]))
    leveller = Leveller([grid] * ranks, budget is not None, budget)
    for _ in range(data.draw(st.integers(1, 60))):
        leveller.add_step([data.draw(st.floats(1e-3, 1e3)) for _ in range(ranks)])
        assert set(leveller.settings) <= set(grid)
        if budget is not None:
            assert sum(leveller.settings) <= max(budget, ranks * grid[-1])


def test_the_mean_of_the_longest_time_is_that_of_many_draws():
    generator = np.random.default_rng(1)
    means = np.array([1.0, 0.99, 0.999, 0.9, 1.0005])
    for scatter in (0.002, 0.01, 0.03):
        drawn = generator.normal(means, scatter, (200_000, len(means))).max(axis=1)
        assert mean_longest(means, np.full(5, scatter)) == pytest.approx(drawn.mean(), abs=0.01 * scatter)
    assert mean_longest(means, np.zeros(5)) == 1.0005
    assert mean_longest(means, np.array([0.0, 0.01, 0.0, 0.0, 0.0])) > 1.0005


def test_a_call_for_many_ranks_computes_each_setting_only_when_it_chooses():
    """A choice looks at all ranks and settings, a usual step at all ranks."""
    leveller = Leveller([range(1410, 200, -15)] * 1024)
    generator = random.Random(1)
    chosen = []
    choose = leveller._lowest_within
    leveller._lowest_within = lambda *arguments: chosen.append(1) or choose(*arguments)
    for _ in range(300):
        leveller.add_step([generator.gauss(1.0, 0.003) for _ in range(1024)])
    assert len(chosen) <= 20
