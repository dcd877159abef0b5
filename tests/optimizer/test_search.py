"""Searches among settings."""

import pytest

from zeus_core.measurement import Measurement
from zeus_core.search import GridSearch, Trial
from zeus_core.testing.contracts import SearchContract


class TestGridSearch(SearchContract):
    @pytest.fixture
    def make_search(self):
        return lambda: GridSearch([300, 200, 100])


def test_a_grid_asks_for_all_settings_in_order():
    search, measurement = GridSearch([300, 100, 200]), Measurement.from_energies(1.0, {0: 1.0})
    for setting in (300, 100, 200):
        assert search.ask() == setting
        search.tell(Trial(setting, 1, measurement))
    assert search.ask() is None
