"""The tests that every `TrialStore` passes, as a class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from zeus_core.measurement import Measurement
from zeus_core.optimizer.trial_store import Conditions, TrialStore
from zeus_core.search import Trial

_CONDITIONS = Conditions(("A40", "A40"), ("550.54",), (300.0, 300.0), "power limit", {"batch_size": 32})
_OTHERS = (
    replace(_CONDITIONS, gpus=("A40",)),
    replace(_CONDITIONS, gpus=("A40", "V100")),
    replace(_CONDITIONS, drivers=("535.1",)),
    replace(_CONDITIONS, original_limits_watts=(300.0, 250.0)),
    replace(_CONDITIONS, knob="SM clock"),
    replace(_CONDITIONS, work={"batch_size": 64}),
)
_TRIALS = [Trial(setting, 40, Measurement.from_energies(4.5, {0: 500.25}), 0.001) for setting in (300, 275, 250)]


class TrialStoreContract:
    """The tests that every implementation of `TrialStore` passes, also one that keeps nothing.

    Derive a test class and return from its `make_store` fixture what opens the same, at first empty, store:

        from zeus_core.testing.contracts import TrialStoreContract

        class TestMyStore(TrialStoreContract):
            @pytest.fixture
            def make_store(self, tmp_path):
                return lambda: MyStore(tmp_path / "trials")
    """

    @pytest.fixture
    def make_store(self) -> Callable[[], TrialStore]:
        """Opens the store."""
        raise NotImplementedError("a test class derived from TrialStoreContract has a fixture `make_store`")

    def test_an_empty_store_has_no_trials(self, make_store: Callable[[], TrialStore]) -> None:
        """Reading an empty store is no error."""
        assert make_store().load(_CONDITIONS) == []

    def test_a_later_run_gets_all_trials_in_order_or_none(self, make_store: Callable[[], TrialStore]) -> None:
        """Never some of them, and none that is changed."""
        make_store().save(_CONDITIONS, _TRIALS)
        assert make_store().load(_CONDITIONS) in (_TRIALS, [])

    def test_saving_replaces_all_that_was_kept(self, make_store: Callable[[], TrialStore]) -> None:
        """Also by nothing."""
        store = make_store()
        store.save(_CONDITIONS, _TRIALS)
        store.save(_CONDITIONS, _TRIALS[:1])
        assert store.load(_CONDITIONS) in (_TRIALS[:1], [])
        store.save(_CONDITIONS, [])
        assert store.load(_CONDITIONS) == []

    def test_trials_of_other_conditions_are_neither_returned_nor_touched(
        self, make_store: Callable[[], TrialStore]
    ) -> None:
        """Other devices, drivers, original limits, settings, or other work."""
        make_store().save(_CONDITIONS, _TRIALS)
        for others in _OTHERS:
            assert make_store().load(others) == []
            make_store().save(others, _TRIALS[:1])
        assert make_store().load(_CONDITIONS) in (_TRIALS, [])
