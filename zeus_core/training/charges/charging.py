"""Charges the energy of a training run as it becomes known, each part at the values of the time it was taken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from zeus_core.training.activities.tally import Tally
from zeus_core.units import kilowatt_hours_from_joules

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity, Signal, SignalPart


@dataclass(frozen=True)
class Charge:
    """Emissions, or cost, of energy.

    A charge holds how much time is not part of it, instead of being lost as a whole, as a `Tally` does.

    Attributes:
        amount: Grams of CO2 equivalent, or money, with the share of the data centre.
        uncertainty: The half-width of the interval that holds the true amount, if the signal is right.
        joules: The energy that was charged, of all devices, without the share of the data centre.
        stale_joules: The part of it that was charged at the average of the signal, because no recent value was known.
        missed_seconds: Time whose energy was not charged: there was no signal, or it failed.
    """

    amount: float = 0.0
    uncertainty: float = 0.0
    joules: float = 0.0
    stale_joules: float = 0.0
    missed_seconds: float = 0.0

    @property
    def stale_fraction(self) -> float:
        """The share of the energy that was charged at the average of the signal."""
        return self.stale_joules / self.joules if self.joules > 0 else 0.0

    def __add__(self, other: Charge) -> Charge:
        """Add what came before or after, or on another rank."""
        return Charge(
            self.amount + other.amount,
            self.uncertainty + other.uncertainty,
            self.joules + other.joules,
            self.stale_joules + other.stale_joules,
            self.missed_seconds + other.missed_seconds,
        )


_logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Trades a journal that is written, and counters that are read, more often for power that is steady in between.
_PERIOD_SECONDS = 60.0
# Before a signal changes, so that little energy lies in the interval that the change is part of.
_CLOSE_SECONDS = 1.0


class Charging:
    """Charges the energy since a beginning.

    Intervals are timed by the monotonic time of the tallies, and placed by the clock at their end. So a clock that is
    set, forward or back, moves the intervals after that, and no interval is longer or shorter for it.

    A signal that fails costs the amounts of the time it fails in, with one warning.

    Args:
        electricity: Its signals.

    Attributes:
        due_after_seconds: How long after the latest charge the next one is due: just before a signal changes, then
            when it has, so that nothing else is charged at the mean of two values; after a minute at the latest.
    """

    def __init__(self, electricity: Electricity) -> None:
        self._lines = [_Line(signal, electricity.pue) for signal in electricity.signals]
        self._charged = Tally()
        self._lost_seconds = 0.0  # as of the latest call
        self.due_after_seconds: float = _CLOSE_SECONDS

    @property
    def charges(self) -> dict[str, Charge]:
        """Emissions and cost until the latest `charge`, by unit."""
        return {line.unit: line.charge for line in self._lines}

    def charge(self, total: Tally, clock_seconds: float) -> None:
        """Charge what came since the latest call.

        Energy that could not be measured may become known later: until it does, or is lost for good, nothing is
        charged, so that it is charged at the values of its own time.

        Args:
            total: The time and energy of all devices since the beginning.
            clock_seconds: The clock now, in seconds since 1970 (Unix time).
        """
        is_new_loss = total.lost_seconds > max(self._charged.lost_seconds, self._lost_seconds)
        self._lost_seconds = total.lost_seconds
        if is_new_loss:
            return
        seconds = max(total.seconds - self._charged.seconds, 0.0)
        joules = total.measured_joules - self._charged.measured_joules
        self._charged = total
        off_joules = total.measured.uncertainty_joules or 0.0
        for line in self._lines:
            line.add(clock_seconds, seconds, joules, off_joules)
        self.due_after_seconds = min(line.steady_seconds(clock_seconds) for line in self._lines)


class _Line:
    """The charge by one signal.

    The energy since the beginning is uncertain at its two ends only, however many intervals there
    are. With e the error of the energy up to the end of an interval, and c the value in it, the error of the sum is

        c1 (e1 - 0) + c2 (e2 - e1) + ... + cn (en - e(n-1))  =  cn en - e1 (c2 - c1) - ... - e(n-1) (cn - c(n-1))

    so each end counts as far as the value changes there. To it comes what is uncertain within each interval.
    """

    def __init__(self, signal: Signal, pue: float) -> None:
        self.unit = signal.facts.amount_unit
        self._signal = signal
        self._pue = pue
        self._sum = Charge()
        self._mean: float | None = None  # of the latest interval
        self._off_joules = 0.0  # of all energy up to it
        self._has_failed = self._was_stale = False

    @property
    def charge(self) -> Charge:
        """All that was charged."""
        off_kilowatt_hours = self._pue * kilowatt_hours_from_joules(self._off_joules)
        return self._sum + Charge(uncertainty=off_kilowatt_hours * abs(self._mean or 0.0))

    def add(self, end_seconds: float, seconds: float, joules: float, off_joules: float) -> None:
        """Add an interval.

        Args:
            end_seconds: The clock at its end.
            seconds: Its length.
            joules: Its energy.
            off_joules: How far all energy up to its end can be off.
        """
        from zeus_core.electricity.electricity_amount import slice_of  # imported already where there is a signal

        part = self._call(slice_of, end_seconds - seconds, end_seconds, joules, self._pue)
        if part is None:
            self._sum += Charge(missed_seconds=seconds)
            return
        change = abs(part.mean - self._mean) if self._mean is not None else 0.0
        off_kilowatt_hours = self._pue * kilowatt_hours_from_joules(self._off_joules)
        self._sum += Charge(part.amount, part.spread + off_kilowatt_hours * change, joules, part.stale_joules)
        self._mean, self._off_joules = part.mean, off_joules
        if part.stale_since_seconds is not None and not self._was_stale:
            self._was_stale = True
            self._warn_of_stale(part.stale_since_seconds)

    def steady_seconds(self, now_seconds: float) -> float:
        """Return how long to wait for the next charge: see `Charging.due_after_seconds`."""
        part = self._call(_first_part, now_seconds, now_seconds + _PERIOD_SECONDS)
        if part is None or part.end_seconds >= now_seconds + _PERIOD_SECONDS:
            return _PERIOD_SECONDS
        left_seconds = part.end_seconds - now_seconds
        return max(left_seconds - _CLOSE_SECONDS if left_seconds > 2 * _CLOSE_SECONDS else left_seconds, 0.1)

    def _call(self, function: Callable[..., _Result], *arguments: float) -> _Result | None:
        """Call a function of the signal; None if it fails: a signal may be anybody's, and training goes on."""
        try:
            return function(self._signal, *arguments)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning(
                    "the signal %s failed (%s: %s): the amount in %s is not known from now on",
                    *(self._signal.facts.source, type(error).__name__, error, self.unit),
                )
            return None

    def _warn_of_stale(self, since_seconds: float) -> None:
        facts = self._signal.facts
        _logger.warning(
            "%s has no recent value at %s: its average, %g %s, is taken there, and wherever that is so later",
            facts.source,
            datetime.fromtimestamp(since_seconds, UTC).isoformat(" ", "minutes"),
            *(facts.average, facts.unit),
        )


def _first_part(signal: Signal, begin_seconds: float, end_seconds: float) -> SignalPart:
    return signal.parts(begin_seconds, end_seconds)[0]
