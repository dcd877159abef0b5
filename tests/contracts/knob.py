"""The tests that every `Knob` passes, as a class."""

import gc
import os
from contextlib import suppress

import pytest

from zeus_core.errors import DeviceError, UsageError


class KnobContract:
    """Derive a test class with two fixtures.

    `make_knob` makes a knob, always of the same hardware; `read_hardware` reads what the knob changes.
    """

    def test_it_has_settings_and_making_it_changes_nothing(self, make_knob, read_hardware):
        """There is at least the baseline, and no setting twice."""
        original = read_hardware()
        knob = make_knob()
        assert len(knob.settings) == len(set(knob.settings)) > 0
        assert read_hardware() == original

    def test_every_setting_can_be_applied_and_the_original_is_restored(self, make_knob, read_hardware):
        """Restoring again does no harm."""
        original = read_hardware()
        knob = make_knob()
        for setting in knob.settings:
            knob.apply(setting)
        assert knob.restore()
        assert knob.restore()
        assert read_hardware() == original

    def test_restoring_is_for_good(self, make_knob, read_hardware):
        """Afterwards no setting can be applied."""
        original = read_hardware()
        knob = make_knob()
        assert knob.restore()
        with suppress(DeviceError):
            knob.apply(knob.settings[-1])
        assert read_hardware() == original

    def test_a_setting_that_does_not_exist_is_a_usage_error_that_names_it(self, make_knob, read_hardware):
        """The hardware stays as it is."""
        original = read_hardware()
        knob = make_knob()
        unknown = max(knob.settings) + 1
        with pytest.raises(UsageError, match=str(unknown)):
            knob.apply(unknown)
        assert read_hardware() == original

    def test_a_knob_that_nobody_holds_restores_the_original(self, make_knob, read_hardware):
        """No owner can forget to restore."""
        original = read_hardware()
        knob = make_knob()
        knob.apply(knob.settings[-1])
        del knob
        gc.collect()
        assert read_hardware() == original

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
    def test_a_forked_child_restores_nothing(self, make_knob, read_hardware):
        """The hardware is its parent's."""
        knob = make_knob()
        knob.apply(knob.settings[-1])
        applied = read_hardware()
        child = os.fork()
        if child == 0:
            is_left_alone = knob.restore() and read_hardware() == applied
            os._exit(0 if is_left_alone else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert read_hardware() == applied
        assert knob.restore()
