"""The tests that every `RunSearch` passes, as a class."""

import math

import pytest

from zeus_core.measurement import Measurement
from zeus_core.search import Trial

RUN_STEPS = 200


def trial_of(setting, steps, original):
    """A block in which energy falls with the setting, and time rises."""
    seconds_per_step = 0.5 + 0.5 * math.sqrt(original / setting)
    measurement = Measurement.from_energies(steps * seconds_per_step, {0: steps * seconds_per_step * 0.9 * setting})
    clock_mhz = 0.9 * setting
    return Trial(setting, steps, measurement, 0.02 * seconds_per_step, clock_mhz, clock_mhz)


class Course:
    """A run of steps; `told` is all that its search was told."""

    def __init__(self, search):
        self.search, self.original = search, search.ask().setting
        self.steps, self.seconds, self.told, self.blocks = 0, 0.0, [], []

    def tell(self, trial):
        self.steps, self.seconds = self.steps + trial.steps, self.seconds + trial.measurement.time
        self.told.append((trial, self.steps, self.seconds))
        self.search.tell(*self.told[-1])

    def block(self, steps=None):
        block = self.search.ask()
        self.blocks.append(block)
        self.tell(trial_of(block.setting, min(steps or block.steps, block.steps), self.original))

    def until_done(self):
        while not self.search.is_done and self.steps < RUN_STEPS:
            self.block()
        return self

    def finish(self):
        while self.steps < RUN_STEPS:
            self.block()
        return self


def state(search):
    return search.ask(), search.choice, search.is_done, search.cost, search.stepped_aside, search.prediction()


class RunSearchContract:
    """The tests that every implementation of `RunSearch` passes.

    Derive a test class, and return from its `make_search` fixture what makes equal searches among `grid`, for a run of
    `RUN_STEPS` steps.
    """

    grid = tuple(range(300, 99, -25))

    @pytest.fixture
    def make_search(self):
        raise NotImplementedError("a test class derived from RunSearchContract has a fixture `make_search`")

    def test_it_begins_at_the_original(self, make_search):
        search = make_search()
        assert search.ask().setting == max(self.grid)
        assert search.choice is None
        assert search.cost is None
        assert search.prediction() is None
        assert search.stepped_aside is None

    def test_every_block_is_within_the_grid_and_measures_something(self, make_search):
        for block in Course(make_search()).finish().blocks:
            assert block.setting in self.grid
            assert block.steps >= 1

    def test_only_telling_changes_its_state(self, make_search):
        course = Course(make_search())
        while course.steps < RUN_STEPS:
            before = state(course.search)
            for steps in (1, 10, 1000):
                assert course.search.may_continue(steps, 1.3 * steps) in {True, False}
            assert state(course.search) == before
            course.block()

    def test_told_the_same_blocks_it_goes_on_where_it_was(self, make_search):
        course = Course(make_search())
        for after in (1, 2, 5, 10):
            while len(course.told) < after and course.steps < RUN_STEPS:
                course.block()
            resumed = make_search()
            for told in course.told:
                resumed.tell(*told)
            assert state(resumed) == state(course.search)

    def test_it_stays_done_and_continues_at_its_choice_or_the_original(self, make_search):
        course = Course(make_search()).until_done()
        assert course.search.is_done
        while course.steps < 2 * RUN_STEPS:
            block = course.search.ask()
            if course.search.is_done and block.is_choice:
                assert block.setting in {course.search.choice, course.original}
            course.block()
        assert course.search.is_done

    def test_a_trial_of_another_setting_than_the_choice_says_so(self, make_search):
        course = Course(make_search())
        while course.steps < RUN_STEPS:
            block, choice = course.search.ask(), course.search.choice
            assert not block.is_choice or block.setting in {choice, course.original}
            course.block()

    def test_blocks_that_end_early_count(self, make_search):
        course = Course(make_search())
        while course.steps < RUN_STEPS:
            course.block(steps=8)
        assert course.search.choice in self.grid

    def test_what_it_did_not_ask_for_does_no_harm(self, make_search):
        """Blocks of an earlier process may come in another order, or at settings of another grid."""
        course = Course(make_search())
        for setting in (7, self.grid[3], 100_000):
            course.tell(trial_of(setting, 10, course.original))
        course.finish()
        assert {block.setting for block in course.blocks} <= set(self.grid)
        assert course.search.choice in self.grid

    @pytest.mark.parametrize(("seconds", "joules"), [(1.0, math.nan), (math.inf, math.inf), (1.0, 0.0)])
    @pytest.mark.parametrize("spoiled", [0, 2])
    def test_a_block_without_a_finite_cost_does_no_harm(self, make_search, seconds, joules, spoiled):
        course = Course(make_search())
        for _ in range(spoiled):
            course.block()
        setting = course.search.ask().setting
        course.tell(Trial(setting, 5, Measurement.from_energies(seconds, {0: joules})))
        for _ in range(6):
            assert course.search.ask().setting in self.grid
            course.block()

    def test_what_it_says_of_itself_holds_together(self, make_search):
        course = Course(make_search())
        while course.steps < RUN_STEPS:
            course.block()
            search = course.search
            assert search.choice is None or search.choice in self.grid
            if search.cost is not None:
                assert 0 <= search.cost.steps <= search.cost.max_steps
                assert search.cost.time_fraction >= 0
            if search.stepped_aside is not None:
                assert search.is_done
                assert search.choice in {None, course.original}
            if search.prediction() is not None:
                assert search.prediction().setting == search.choice
                other = search.prediction(self.grid[2])
                assert other is None or other.setting == self.grid[2]
