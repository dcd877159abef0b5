"""The tests that every `Search` passes, as a class."""

import math

import pytest

from zeus_core.measurement import Measurement
from zeus_core.search import Trial

_MAX_TRIALS = 1000  # no knob has more settings


class SearchContract:
    """Derive a test class with a fixture `make_search`, which makes a search that has received no trial."""

    def test_it_asks_for_something_first(self, make_search):
        """Its first setting is a whole number above 0."""
        asked = make_search().ask()
        assert isinstance(asked, int)
        assert asked > 0

    def test_asking_again_gives_the_same_answer(self, make_search):
        """At every point of the search."""
        search = make_search()
        for _ in range(3):
            assert search.ask() == search.ask()
            _answer(search)

    def test_it_ends(self, make_search):
        """It does not begin again."""
        search = make_search()
        assert len(_run(search)) < _MAX_TRIALS
        assert search.ask() is None

    def test_the_same_answers_give_the_same_questions(self, make_search):
        """A search is deterministic: ranks that each have one ask alike."""
        assert _run(make_search()) == _run(make_search())

    def test_it_learns_from_trials_it_did_not_ask_for(self, make_search):
        """Given all trials of an earlier run, it asks for none of them."""
        asked = _run(make_search())
        search = make_search()
        for setting in reversed(asked):
            search.tell(_trial(setting))
        assert search.ask() not in asked

    def test_a_trial_of_an_unknown_setting_does_no_harm(self, make_search):
        """Such a trial may come from a file that another version wrote."""
        search = make_search()
        search.tell(_trial(7))
        assert len(_run(search)) < _MAX_TRIALS

    def test_its_choice_lies_among_what_was_tried(self, make_search):
        """At every point of the search. None leaves the choice to a selector."""
        search, tried = make_search(), set()
        while (asked := _answer(search)) is not None:
            tried.add(asked)
            assert search.choice is None or min(tried) <= search.choice <= max(tried)

    def test_told_the_same_trials_it_goes_on_where_it_was(self, make_search):
        """So a search that was interrupted after any trial continues."""
        search, told = make_search(), []
        while len(told) < _MAX_TRIALS and (setting := search.ask()) is not None:
            told.append(_trial(setting))
            search.tell(told[-1])
            resumed = make_search()
            for trial in told:
                resumed.tell(trial)
            assert (resumed.ask(), resumed.choice) == (search.ask(), search.choice)

    @pytest.mark.parametrize("seconds", [1.0, math.inf])
    @pytest.mark.parametrize("joules", [math.nan, math.inf, 0.0])
    def test_trials_without_a_finite_cost_do_no_harm(self, make_search, seconds, joules):
        """A counter may have failed. The setting is not asked for again, and the search ends."""
        for spoiled in range(4):
            search, asked = make_search(), []
            while len(asked) < _MAX_TRIALS and (setting := search.ask()) is not None:
                measurement = Measurement.from_energies(seconds, {0: joules})
                search.tell(Trial(setting, 10, measurement) if len(asked) == spoiled else _trial(setting))
                asked.append(setting)
            assert len(asked) == len(set(asked)) < _MAX_TRIALS


def _trial(setting):
    """Make a trial in which energy falls with the setting, and time rises."""
    return Trial(setting, 10, Measurement.from_energies(1.0 + 100.0 / setting, {0: float(setting)}))


def _answer(search):
    asked = search.ask()
    if asked is not None:
        search.tell(_trial(asked))
    return asked


def _run(search):
    asked = []
    while len(asked) < _MAX_TRIALS and (setting := _answer(search)) is not None:
        asked.append(setting)
    return asked
