"""The settings of several activities: one bound for the run, one price of a second."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.run_search_contract import RUN_STEPS, Course, RunSearchContract, state
from zeus_core.activities.activities_search import STEPS, ActivitiesRunSearch
from zeus_core.activities.price import Demand, Stake, cheapest, total
from zeus_core.device import Work, find_preset
from zeus_core.measurement import Measurement
from zeus_core.search import Trial
from zeus_core.search.objectives import Energy, EnergyWithin
from zeus_core.search.run.adaptive_run_search import AdaptiveRunSearch

GRID = RunSearchContract.grid
PRESET = find_preset("A100")
CLOCKS = list(range(1410, 400, -30))
GENERATION = Work(30.0, 170.0, 1.0, 0.05)
TRAINING = Work(20.0, 480.0, 0.94, 0.8)


def make_search(factor=1.05, max_steps=200, **options):
    return ActivitiesRunSearch(
        CLOCKS, EnergyWithin(factor), max_steps=max_steps, knob="clock", **{"max_changes_per_hour": 1e9, **options}
    )


class Training:
    """A run in virtual time: each step visits activities as often as `visits` says, for so much of the usual work."""

    def __init__(self, search, works, *, spread=0.03, seed=0, work=lambda name, step: 1.0):
        self.search, self.works, self.spread, self.work = search, works, spread, work
        self.random = np.random.default_rng(seed)
        self.seconds = self.joules = self.untouched_seconds = self.untouched_joules = 0.0
        self.step, self.told, self.blocks, self.counts = 0, [], {}, {}

    def visit(self, name):
        view = self.search.of(name)
        setting = view.ask().setting
        length = self.work(name, self.step) * math.exp(self.spread * self.random.standard_normal())
        point, original = (
            PRESET.physics.operating_point(self.works[name], 400.0, clock / 1410) for clock in (setting, 1410)
        )
        self.seconds, self.joules = self.seconds + point.seconds * length, self.joules + point.energy_joules * length
        self.untouched_seconds += original.seconds * length
        self.untouched_joules += original.energy_joules * length
        visits, seconds = self.counts.get(name, (0, 0.0))
        self.counts[name] = visits + 1, seconds + point.seconds * length
        block = self.blocks.setdefault(name, [])
        if block and block[0][0] != setting:
            self.report(name)
            block = self.blocks[name] = []
        block.append((setting, point.seconds * length, point.energy_joules * length))
        if len(block) >= view.ask().steps:
            self.report(name)
            self.blocks[name] = []

    def report(self, name):
        block = self.blocks[name]
        seconds = [one[1] for one in block]
        measurement = Measurement.from_energies(sum(seconds), {0: sum(one[2] for one in block)})
        trial = Trial(block[0][0], len(block), measurement, float(np.std(seconds)))
        self.told.append((self.step, name, trial, *self.counts[name]))
        tell(self.search, self.told[-1])

    def run(self, steps, visits=lambda step: [("generation", 1), (STEPS, 1)]):
        for _ in range(steps):
            for name, count in visits(self.step):
                for _ in range(count):
                    self.visit(name)
            self.step += 1
        return self

    @property
    def factor(self):
        return self.seconds / self.untouched_seconds

    @property
    def saved(self):
        return 1 - self.joules / self.untouched_joules


def tell(search, told):
    step, name, *block = told
    search.at_step(step)
    search.of(name).tell(*block)


WORKS = {"generation": GENERATION, STEPS: TRAINING}


class TestSteps(RunSearchContract):
    @pytest.fixture
    def make_search(self):
        return lambda: ActivitiesRunSearch(GRID, EnergyWithin(1.1), max_steps=RUN_STEPS, max_changes_per_hour=120).of(
            STEPS
        )


class TestAnotherActivity(RunSearchContract):
    @pytest.fixture
    def make_search(self):
        return lambda: ActivitiesRunSearch(GRID, EnergyWithin(1.1), max_changes_per_hour=120).of("generation")


@given(
    st.sampled_from([EnergyWithin(1.02), EnergyWithin(1.1), Energy()]),
    st.lists(st.integers(1, 40), min_size=8, max_size=12),
)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_steps_alone_are_searched_as_ever(selector, lengths):
    common = Course(AdaptiveRunSearch(GRID, selector, max_steps=RUN_STEPS))
    alone = Course(ActivitiesRunSearch(GRID, selector, max_steps=RUN_STEPS, max_changes_per_hour=120).of(STEPS))
    for length in lengths:
        common.block(length)
        alone.block(length)
        assert state(common.search) == state(alone.search)


@given(
    st.floats(0.05, 0.8), st.floats(0.3, 1.2), st.floats(0.01, 0.1), st.sampled_from([1.01, 1.02, 1.1]), st.integers(0)
)
@settings(max_examples=6, deadline=None, derandomize=True)
def test_the_run_keeps_its_bound_and_saves(bound_share, power, spread, factor, seed):
    works = {"generation": Work(30.0, 400 * power, 1.0, bound_share), STEPS: TRAINING}
    run = Training(make_search(factor), works, spread=spread, seed=seed).run(200)
    assert run.factor <= 1.01 * factor
    assert run.saved >= 0


def test_generation_gets_a_lower_clock_than_steps():
    run = Training(make_search(1.02, 400), WORKS).run(400)
    assert run.search.of("generation").choice < 0.95 * run.search.of(STEPS).choice
    assert run.factor <= 1.02
    common, own = make_saving(run)
    assert own >= common


def make_saving(run):
    """What is expected of the rest of a run as long again."""
    search = make_search(1.02, 800)
    for told in run.told:
        tell(search, told)
    return search.common_saving()


def test_alike_activities_gain_less_than_a_step_of_the_clock():
    """Of which one setting for all leaves a part of the bound unused."""
    run = Training(make_search(1.02, 400), {"generation": TRAINING, STEPS: TRAINING}).run(400)
    common, own = make_saving(run)
    assert 0 <= own - common < 0.02


def test_the_same_blocks_lead_to_the_same_next_one():
    run = Training(make_search(), WORKS)
    for _ in range(6):
        run.run(25)
        resumed = make_search()
        for told in run.told:
            tell(resumed, told)
        for name in WORKS:
            assert state(resumed.of(name)) == state(run.search.of(name))


@pytest.mark.parametrize(
    "visits",
    [
        lambda step: [(STEPS, 1), *([("generation", 1)] if step >= 150 else [])],
        lambda step: [(STEPS, 1), *([("generation", 30)] if step == 120 else [])],
        lambda step: [("generation", 3 if step < 100 else 1), (STEPS, 1)],
        lambda step: [*([("generation", 2)] if step < 100 else []), (STEPS, 1)],
        lambda step: [("generation", 1 if step < 100 else 4), (STEPS, 1)],
    ],
    ids=["late", "once", "fewer", "no more", "more"],
)
@pytest.mark.parametrize("factor", [1.02, 1.1])
def test_the_bound_holds_when_the_mix_changes(visits, factor):
    for seed in range(2):
        run = Training(make_search(factor), WORKS, seed=seed).run(200, visits)
        assert run.factor <= 1.005 * factor
        assert run.saved >= 0


@pytest.mark.parametrize(
    "work",
    [
        lambda name, step: 0.4 if name == "generation" and step >= 150 else 1.0,
        lambda name, step: {"generation": 0.4, STEPS: 2.0}[name] if step >= 150 else 1.0,
        lambda name, step: 1 - step / 600 if name == "generation" else 1.0,
        lambda name, step: 0.4 if step >= 150 else 1.0,
    ],
    ids=["shorter", "swapped", "shrinking", "all shorter"],
)
def test_the_bound_holds_when_visits_last_another_time(work):
    for seed in range(2):
        run = Training(make_search(1.02, 300), WORKS, spread=0.1, seed=seed, work=work).run(300)
        assert run.factor <= 1.02
        assert run.saved >= 0.02


def test_short_visits_have_the_setting_of_steps():
    search = make_search()
    search.switch_seconds = 2.0
    run = Training(search, WORKS).run(150)
    assert list(search.following) == ["generation"]
    assert search.of("generation").ask().setting == search.of(STEPS).ask().setting
    assert run.search.of(STEPS).choice < 1410
    assert run.factor <= 1.05


@pytest.mark.parametrize("selector", [EnergyWithin(1.05), Energy()])
def test_the_least_valuable_activity_gives_way_to_rarer_changes(selector):
    search = ActivitiesRunSearch(CLOCKS, selector, max_steps=200, knob="clock", max_changes_per_hour=150)
    works = {**WORKS, "reference": Work(10.0, 400.0, 1.0, 0.7)}  # four changes in 60 s
    Training(search, works).run(200, lambda step: [("generation", 1), ("reference", 1), (STEPS, 1)])
    assert list(search.following) == ["reference"]
    assert "150 times an hour" in search.following["reference"]
    assert search.changes_per_hour <= 150


@given(st.integers(0, 1000), st.integers(1, 3), st.floats(1.0, 60.0))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_one_price_of_a_second_saves_almost_as_much_as_any(seed, count, allowed):
    random, stakes = np.random.default_rng(seed), []
    clocks = np.linspace(1, 0.5, 26)
    for _ in range(count):
        power, share = random.uniform(100, 400), random.uniform(0.05, 0.8)
        slower = share * (1 / clocks - 1) * 100
        joules = power * (0.3 + 0.7 * clocks**3) * (100 + slower)
        stakes.append(Stake(joules, -slower, (0.02 * slower) ** 2, 100.0))
    demand = Demand(2.0, 4.0, 1e9, allowed)
    places, price = cheapest(stakes, demand)
    assert price >= 0
    assert demand.is_met(total(stakes, places, "spare"), total(stakes, places, "variance"))
    best = (
        min(
            total(stakes, some, "joules")
            for some in itertools.product(range(26), repeat=count)
            if demand.is_met(total(stakes, some, "spare"), total(stakes, some, "variance"))
        )
        if count < 3
        else math.nan
    )
    original = total(stakes, [0] * count, "joules")
    if count < 3:
        assert total(stakes, places, "joules") <= best + 0.02 * original
