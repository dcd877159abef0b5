"""Searches among settings."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.search import SearchContract
from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.search import AdaptiveSearch, GridSearch, Trial
from zeus_core.search._aims import normal_probability
from zeus_core.search._curves import CurveShapes
from zeus_core.search._prior import read_prior
from zeus_core.search.objectives import (
    Energy,
    EnergyWithin,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)
from zeus_core.search.run.fixed_trials import FixedTrials

# A V100-like board and work, and one whose limits never bind; columns of `CurveShapes`, and the demand.
BOUND = (0.14, 0.28, 0.79, 0.8, 0.18, 1.01, 0.85, 0.7), 1.15
UNBOUND = (0.14, 0.28, 0.79, 0.8, 0.18, 1.01, 0.5, 0.7), 0.3

# It draws 200 W for 40 % of its time, and 119 W on average: at 125 W it is 9 % slower.
BURSTY = (0.14, 0.325, 0.79, 0.8, 0.18, 1.0, 0.4, 0.9), 0.667


class EnergyDelay(Objective):
    """A cost of a user's own."""

    def cost(self, measurement, baseline):
        return measurement.energy * measurement.time


class NoMoreThan(Objective):
    """A cost that is infinite beyond a slowdown."""

    def cost(self, measurement, baseline):
        return measurement.energy if measurement.time <= 1.08 * baseline.time else math.inf


class Middle(OptimumSelector):
    """A rule that is no cost."""

    def select(self, measurements):
        within = [one for one in measurements if one.time < 1.2 * min(other.time for other in measurements)]
        return sorted(one.power_limit for one in within)[len(within) // 2]


class Raising(OptimumSelector):
    def select(self, measurements):
        raise RuntimeError("no rule")


class CostOfLimit(Objective):
    """A cost of the setting itself, which no noise of a trial touches."""

    def __init__(self, best):
        self.best = best

    def cost(self, measurement, baseline):
        return 1 + abs(measurement.power_limit - self.best)


class RaisingCost(Objective):
    def cost(self, measurement, baseline):
        raise RuntimeError("no cost")


class NeverOffered(OptimumSelector):
    def select(self, measurements):
        return 7


SELECTORS = [
    ZeusCost(0.5),
    Energy(),
    Time(),
    MaxSlowdownConstraint(1.1),
    EnergyWithin(1.1),
    EnergyDelay(),
    NoMoreThan(),
    Middle(),
    Raising(),
    RaisingCost(),
    NeverOffered(),
]
CLOCK_SELECTORS = [ZeusCost(0.5, max_power_watts=400), *SELECTORS[1:]]
CERTAIN = SELECTORS[:7]


class Board:
    """Answers with the curves of one shape, and noise."""

    def __init__(self, shape, settings, noise=0.0, seed=0, gpus=1):
        self.settings, self.noise, self.gpus = sorted(settings, reverse=True), noise, gpus
        self.random = np.random.default_rng(seed)
        parameters, demand = shape
        shapes = CurveShapes(np.array([parameters]), np.array([[demand]]))
        seconds, watts = shapes.under_limits(np.array(self.settings) / self.settings[0])
        self.seconds = dict(zip(self.settings, np.exp(seconds[0]), strict=True))
        self.watts = dict(zip(self.settings, self.settings[0] * np.exp(watts[0]), strict=True))

    def trial(self, setting, steps=40):
        seconds = self.seconds[setting] * math.exp(self.noise * self.random.standard_normal())
        joules = steps * seconds * self.watts[setting] * math.exp(self.noise * self.random.standard_normal())
        energies = dict.fromkeys(range(self.gpus), joules)
        measurement = Measurement.from_energies(steps * seconds, energies, uncertainty_joules=2 * self.noise * joules)
        return Trial(setting, steps, measurement, self.noise * seconds * math.sqrt(steps))

    def run(self, search):
        trials = {}
        while (setting := search.ask()) is not None:
            assert setting not in trials
            trials[setting] = self.trial(setting)
            search.tell(trials[setting])
        return trials

    def run_again(self, search):
        """Go on after a trial that was not asked for."""
        while (setting := search.ask()) is not None:
            search.tell(self.trial(setting))

    def regret(self, selector, chosen):
        def measured(setting):
            return PowerLimitMeasurement(setting, self.seconds[setting] * self.watts[setting], self.seconds[setting])

        baseline = measured(self.settings[0])
        costs = {setting: selector.cost(measured(setting), baseline) for setting in self.settings}
        return costs[chosen] / min(costs.values()) - 1


class TestGridSearch(SearchContract):
    @pytest.fixture
    def make_search(self):
        return lambda: GridSearch([300, 200, 100])


@pytest.mark.parametrize(
    "selector", [ZeusCost(0.5), MaxSlowdownConstraint(1.1), Middle()], ids=["cost", "bound", "rule"]
)
class TestAdaptiveSearch(SearchContract):
    @pytest.fixture
    def make_search(self, selector):
        return lambda: AdaptiveSearch(range(100, 301, 50), selector)


class TestAdaptiveSearchOfClocks(SearchContract):
    @pytest.fixture
    def make_search(self):
        return lambda: AdaptiveSearch(range(210, 1411, 200), Energy(), knob="clock")


def test_a_grid_asks_for_all_settings_in_order():
    search, measurement = GridSearch([300, 100, 200]), Measurement.from_energies(1.0, {0: 1.0})
    for setting in (300, 100, 200):
        assert search.ask() == setting
        search.tell(Trial(setting, 1, measurement))
    assert search.ask() is None


@pytest.mark.parametrize("step", [25, 5])
@pytest.mark.parametrize("selector", [ZeusCost(0.5), Energy(), EnergyDelay()], ids=lambda rule: type(rule).__name__)
def test_a_board_like_the_known_ones_takes_about_four_trials(selector, step):
    trials, regrets = [], []
    for seed in range(4):
        board = Board(BOUND, range(100, 301, step), noise=0.01, seed=seed)
        search = AdaptiveSearch(board.settings, selector)
        asked = board.run(search)
        assert next(iter(asked)) == 300
        trials.append(len(asked))
        regrets.append(board.regret(selector, search.choice))
    assert np.mean(trials) <= 5 if isinstance(selector, ZeusCost) else max(trials) <= 6
    assert np.mean(regrets) < 0.015


@pytest.mark.parametrize("selector", CERTAIN, ids=lambda selector: type(selector).__name__)
def test_limits_that_never_bind_are_recognised_in_two_trials(selector):
    board = Board(UNBOUND, range(100, 301, 5), noise=0.02)
    search = AdaptiveSearch(board.settings, selector)
    assert list(board.run(search)) == [300, 100]
    assert search.choice in {100, 300}


def test_a_mean_draw_below_the_lowest_limit_is_no_proof():
    """The lowest limit was chosen where its trial was not certainly slower, although it took a fifth of the power."""
    for seed in range(30):
        board = Board(BURSTY, range(125, 301, 5), noise=0.025, seed=seed)
        search = AdaptiveSearch(board.settings, EnergyWithin(1.02))
        board.run(search)
        assert board.watts[300] < 125
        assert search.choice > 125


@pytest.mark.parametrize("best", [100, 300, 180])
@pytest.mark.parametrize("slower", [0.9, 1.0, 1.1, 3.0])
def test_a_cost_of_the_setting_itself_is_believed_where_no_limit_binds(best, slower):
    """Such as on a busy machine, where the steps at the lowest limit may last longer by chance."""
    search = AdaptiveSearch(range(100, 301, 20), CostOfLimit(best))
    while (setting := search.ask()) is not None:
        seconds = 40 * (1.0 if setting == 300 else slower)
        search.tell(Trial(setting, 40, Measurement.from_energies(seconds, {0: 60 * seconds}), 0.01))
    assert search.choice == best


def test_work_below_the_lowest_limit_only_on_average_is_searched_further():
    """Half of the time it draws more, so that the limits bind after all."""
    board = Board(((0.14, 0.2, 0.79, 0.8, 0.18, 1.01, 0.3, 0.9), 0.75), range(150, 301, 5), noise=0.003)
    assert board.watts[300] < 150
    search = AdaptiveSearch(board.settings, MaxSlowdownConstraint(1.03))
    assert len(board.run(search)) > 2
    assert 1.0 < board.seconds[search.choice] / board.seconds[300] < 1.04


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_a_slowdown_bound_is_kept_with_the_asked_probability(confidence):
    beyond, runs = 0, 12
    for seed in range(runs):
        board = Board(BOUND, range(100, 301, 20), noise=0.01, seed=seed)
        search = AdaptiveSearch(board.settings, MaxSlowdownConstraint(1.1), confidence=confidence)
        board.run(search)
        beyond += board.seconds[search.choice] > 1.1 * board.seconds[300]
    assert beyond <= (1 - confidence) * runs + 2


@pytest.mark.parametrize("make", [AdaptiveSearch, lambda settings, _: GridSearch(settings)])
def test_a_slowdown_bound_is_met_by_least_energy_not_the_lowest_limit(make):
    board = Board(BOUND, range(100, 301, 25))
    choices = []
    for selector in (EnergyWithin(100.0), MaxSlowdownConstraint(100.0)):
        search = make(board.settings, selector)
        trials = board.run(search)
        measurements = [PowerLimitMeasurement.from_trial(trial, 1) for trial in trials.values()]
        choices.append(search.choice or selector.select(measurements))
    assert board.regret(Energy(), choices[0]) < 0.01
    if make is AdaptiveSearch:
        assert choices[1] <= choices[0], "the lowest limit that keeps the bound, unless another that was tried beats it"
    else:
        assert choices[1] < choices[0], "the published rule alone"


def test_a_bound_that_no_lower_setting_keeps_leaves_the_original():
    board = Board(((0.14, 0.2, 0.79, 0.8, 0.18, 1.01, 1.0, 1.0), 1.5), [300, 200, 100])
    search = AdaptiveSearch(board.settings, MaxSlowdownConstraint(1.0))
    board.run(search)
    assert search.choice == 300


def test_time_is_not_given_away_and_energy_is_not_wasted():
    board = Board(((0.14, 0.28, 0.79, 0.8, 0.18, 1.01, 0.85, 0.7), 0.7), range(100, 301, 5))
    search = AdaptiveSearch(board.settings, Time())
    board.run(search)
    assert board.seconds[search.choice] < 1.005 * board.seconds[300]


def test_precise_trials_and_coarse_ones_differ():
    """The same numbers, but of trials whose steps scatter a lot: they are believed less."""
    choices = []
    for deviation in (0.002, 2.0):
        search = AdaptiveSearch([300, 250, 200, 150], MaxSlowdownConstraint(1.1))
        seconds = {300: 1.0, 250: 1.03, 200: 1.085, 150: 1.3}
        while (setting := search.ask()) is not None:
            measurement = Measurement.from_energies(40 * seconds[setting], {0: 40 * 0.9 * setting * seconds[setting]})
            search.tell(Trial(setting, 40, measurement, deviation))
        choices.append(search.choice)
    assert choices[0] == 200
    assert choices[1] == 300


def test_trials_tell_how_well_the_known_shapes_fit():
    """Two trials at the same limits: of a GPU like the known ones, and of one that gets slower than any of them."""
    widths = []
    for slower in (1.0, 1.5):
        board = Board(BOUND, [300, 200, 160, 120])
        board.seconds[160] *= slower
        search = AdaptiveSearch(board.settings, Energy())
        for setting in (300, 200, 160):
            search.tell(board.trial(setting))
        least, most = search.prediction(120).slowdown_interval
        widths.append(math.log(most / least))
    assert widths[1] > 2 * widths[0]


def test_several_gpus_are_searched_like_one():
    alone, together = (Board(BOUND, range(100, 301, 25), gpus=gpus) for gpus in (1, 4))
    first = list(alone.run(AdaptiveSearch(alone.settings, ZeusCost(0.5, world_size=1))))
    assert first == list(together.run(AdaptiveSearch(together.settings, ZeusCost(0.5, world_size=4))))


def test_a_locked_clock_is_searched_too():
    grid = range(210, 1411, 15)
    shapes = CurveShapes(np.array([BOUND[0]]), np.array([[0.9]]))
    seconds, watts = (np.exp(values[0]) for values in shapes.at_clocks(np.array(grid) / 1410))
    joules = dict(zip(grid, seconds * watts * 300, strict=True))
    duration = dict(zip(grid, seconds, strict=True))
    search = AdaptiveSearch(grid, Energy(), knob="clock")
    trials = 0
    while (setting := search.ask()) is not None:
        search.tell(Trial(setting, 1, Measurement.from_energies(duration[setting], {0: joules[setting]}), 1e-9))
        trials += 1
    assert trials <= 6
    assert joules[search.choice] < 1.01 * min(joules.values())


def test_trials_between_the_settings_teach_and_those_outside_do_not():
    """A profile may come from a search with other settings."""
    board = Board(BOUND, [300, *range(110, 300, 20), *range(100, 300, 20)])
    search = AdaptiveSearch(range(100, 301, 20), Energy())
    for setting in (300, *range(110, 300, 20)):
        search.tell(board.trial(setting))
    asked = board.run(search)
    assert len(asked) <= 3
    untaught = AdaptiveSearch(range(100, 301, 20), Energy())
    untaught.tell(Trial(400, 1, Measurement.from_energies(1.0, {0: 1.0})))
    untaught.tell(Trial(50, 1, Measurement.from_energies(1.0, {0: 1.0})))
    assert untaught.ask() == 300


def test_an_original_that_cannot_be_measured_stays():
    search = AdaptiveSearch([300, 200, 100], Energy())
    search.tell(Trial(300, 1, Measurement.from_energies(1.0, {0: math.nan})))
    assert search.ask() is None
    assert search.choice == 300


def test_one_setting_is_measured_once():
    search = AdaptiveSearch([300], Energy())
    assert search.ask() == 300
    search.tell(Trial(300, 1, Measurement.from_energies(1.0, {0: 1.0})))
    assert search.ask() is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"settings": []},
        {"settings": [300, 0]},
        {"selector": None},
        {"knob": "fan"},
        {"confidence": 0.2},
        {"confidence": 1.0},
        {"max_trials": 0},
    ],
)
def test_wrong_arguments_are_named(arguments):
    good = {"settings": [300, 200], "selector": Energy()}
    with pytest.raises(UsageError, match=next(iter(arguments))):
        AdaptiveSearch(**(good | arguments))


def test_the_normal_distribution():
    deviations = np.array([-40.0, -1.959964, 0.0, 1.0, 40.0])
    assert normal_probability(deviations) == pytest.approx([0.0, 0.025, 0.5, 0.8413447, 1.0], abs=1e-6)


def test_a_cost_that_would_take_megahertz_for_watts_is_refused():
    with pytest.raises(UsageError, match=r"pass ZeusCost\(max_power_watts=...\)"):
        AdaptiveSearch(range(210, 1411, 200), ZeusCost(0.5), knob="clock")
    AdaptiveSearch(range(210, 1411, 200), ZeusCost(0.5, max_power_watts=400), knob="clock")


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_anything_that_is_measured_leads_to_an_end(data):
    """Times and energies of no known board, and rules of all kinds."""
    grid = data.draw(st.sets(st.integers(1, 2000), min_size=1, max_size=12))
    knob = data.draw(st.sampled_from(["power limit", "clock"]))
    selector = data.draw(st.sampled_from(SELECTORS if knob == "power limit" else CLOCK_SELECTORS))
    search = AdaptiveSearch(grid, selector, knob=knob)
    number = st.one_of(st.floats(1e-6, 1e9), st.sampled_from([math.nan, math.inf, 0.0]))
    tried = set()
    while (setting := search.ask()) is not None:
        assert setting in grid - tried
        seconds, joules = data.draw(st.one_of(st.floats(1e-6, 1e9), st.just(math.inf))), data.draw(number)
        deviation = data.draw(st.floats(0, 1e3))
        search.tell(Trial(setting, 10, Measurement.from_energies(seconds, {0: joules}), deviation))
        tried.add(setting)
        near = 0.1 * max(grid)  # of one that was tried: then it is known well enough
        assert search.choice is None or min(abs(search.choice - other) for other in tried) <= near
    assert len(tried) <= min(6, len(grid))


def test_a_rule_never_chooses_a_trial_of_an_unknown_setting():
    search = FixedTrials(GridSearch([300, 200]), [300, 200], lambda trials: min(one.setting for one in trials), 5)
    board = Board(BOUND, [300, 200, 7])
    for setting in (7, 300, 200):
        search.tell(board.trial(setting), 5, 5.0)
    assert search.choice == 200


def test_a_cost_takes_four_trials_and_more_only_for_much():
    grid, selector = range(100, 301, 5), ZeusCost(0.5)
    prior = read_prior()
    trials = []
    for seed, shape in enumerate(prior.parameters[::24]):
        board = Board((shape, 1.1), grid, noise=0.01, seed=seed)
        trials.append(len(board.run(AdaptiveSearch(grid, selector, prior=prior))))
    assert np.mean([count <= 4 for count in trials]) >= 0.8
    assert np.mean(trials) >= 3.5, "few trials tell little of what the estimate has wrong"


def test_on_a_fine_grid_the_choice_may_lie_between_two_trials():
    """Neighbours are as good as the same: another trial to tell them apart costs more than it gains."""
    grid, selector = range(100, 301, 2), ZeusCost(0.5)
    trials, regrets, are_between = [], [], []
    for seed in range(6):
        search, board = AdaptiveSearch(grid, selector), Board(BOUND, grid, noise=0.01, seed=seed)
        trials.append(len(board.run(search)))
        regrets.append(board.regret(selector, search.choice))
        are_between.append(search.choice not in search._told)
    assert np.mean(trials) <= 4.5
    assert np.mean(regrets) <= 0.004
    assert any(are_between)
