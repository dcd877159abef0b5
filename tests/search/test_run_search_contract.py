"""Every search within a run passes the same tests."""

import pytest

from tests.optimizer.test_search import Middle
from tests.search.run_search_contract import RUN_STEPS, RunSearchContract
from zeus_core.search import AdaptiveSearch, GridSearch
from zeus_core.search.objectives import Energy, MaxSlowdownConstraint, PowerLimitMeasurement, ZeusCost
from zeus_core.search.run.adaptive_run_search import AdaptiveRunSearch
from zeus_core.search.run.each_setting import EachSetting
from zeus_core.search.run.fixed_trials import FixedTrials
from zeus_core.search.run.safe_clock import SafeClock

GRID = RunSearchContract.grid
CLOCKS = tuple(range(1410, 600, -90))


@pytest.mark.parametrize("selector", [MaxSlowdownConstraint(1.1), Energy(), Middle()], ids=["bound", "cost", "rule"])
class TestAdaptiveRunSearch(RunSearchContract):
    @pytest.fixture
    def make_search(self, selector):
        return lambda: AdaptiveRunSearch(GRID, selector, max_steps=RUN_STEPS)


class TestAdaptiveRunSearchOfUnknownLength(RunSearchContract):
    @pytest.fixture
    def make_search(self):
        return lambda: AdaptiveRunSearch(GRID, MaxSlowdownConstraint(1.1))


class TestAdaptiveRunSearchThatStepsAside(RunSearchContract):
    @pytest.fixture
    def make_search(self):
        return lambda: AdaptiveRunSearch(GRID, MaxSlowdownConstraint(1.0), max_steps=RUN_STEPS)


@pytest.mark.parametrize("search", [GridSearch, AdaptiveSearch])
class TestFixedTrials(RunSearchContract):
    @pytest.fixture
    def make_search(self, search):
        rule = ZeusCost(0.5)

        def choose(trials):
            return rule.select([PowerLimitMeasurement.from_trial(trial, 1) for trial in trials])

        arguments = () if search is GridSearch else (rule,)
        return lambda: FixedTrials(search(GRID, *arguments), GRID, choose, trial_steps=7)


class TestEachSetting(RunSearchContract):
    grid = (300, 130, 32, 2)

    @pytest.fixture
    def make_search(self):
        return lambda: EachSetting(self.grid, 1.1, max_steps=RUN_STEPS)


class TestSafeClock(RunSearchContract):
    grid = CLOCKS

    @pytest.fixture
    def make_search(self):
        rule = MaxSlowdownConstraint(1.1)
        return lambda: SafeClock(AdaptiveRunSearch(CLOCKS, rule, knob="clock", max_steps=RUN_STEPS), CLOCKS, 1.1)
