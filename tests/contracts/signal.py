"""The duties of every signal of electricity."""

import itertools
from abc import ABC, abstractmethod

import pytest

from zeus_core.errors import UsageError

_HOUR_SECONDS = 3600.0


class SignalContract(ABC):
    """Derive a test class from this one to check an implementation of `Signal`."""

    @abstractmethod
    def make_signal(self):
        """Make a signal that knows something at `known_seconds`."""

    @property
    def known_seconds(self):
        """A time at which the signal is not stale, in seconds since 1970."""
        return 1_772_323_200.0  # 2026-03-01 00:00 UTC

    def test_that_the_parts_cover_the_period(self):
        signal = self.make_signal()
        for hours_before, hours in itertools.product((0.0, 0.3, 50.0, 20_000.0), (0.0, 0.01, 1.0, 30.0, 400.0)):
            begin = self.known_seconds - hours_before * _HOUR_SECONDS
            end = begin + hours * _HOUR_SECONDS
            parts = signal.parts(begin, end)
            assert parts[0].begin_seconds == begin
            assert parts[-1].end_seconds == end
            for earlier, later in itertools.pairwise(parts):
                assert earlier.begin_seconds < earlier.end_seconds == later.begin_seconds

    def test_that_a_part_says_the_same_as_any_moment_in_it(self):
        signal = self.make_signal()
        for part in signal.parts(self.known_seconds, self.known_seconds + 50 * _HOUR_SECONDS):
            for fraction in (0.0, 0.4, 0.999):
                moment = part.begin_seconds + fraction * (part.end_seconds - part.begin_seconds)
                (there,) = signal.parts(moment, moment)
                assert (there.value, there.is_stale) == (part.value, part.is_stale)

    def test_that_a_stale_value_is_the_average(self):
        signal = self.make_signal()
        for part in signal.parts(self.known_seconds - 3e6, self.known_seconds + 3e6):
            assert not part.is_stale or part.value == signal.facts.average

    def test_that_it_knows_something(self):
        (part,) = self.make_signal().parts(self.known_seconds, self.known_seconds)
        assert not part.is_stale

    def test_that_its_facts_are_complete(self):
        facts = self.make_signal().facts
        assert facts.unit.endswith("/kWh")
        assert facts.source
        assert facts.is_price == (facts.unit != "g/kWh")

    def test_that_a_period_must_not_end_before_it_begins(self):
        with pytest.raises(UsageError, match="before"):
            self.make_signal().parts(self.known_seconds, self.known_seconds - 1.0)
