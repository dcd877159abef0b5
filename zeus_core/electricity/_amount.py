"""What energy emitted or cost: energy times a signal, split where the signal changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core._units import kilowatt_hours_from_joules
from zeus_core._validate import checked_list, checked_number
from zeus_core.electricity._signal import Signal, SignalPart, checked_signal, mean_value
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy

__all__ = ["ElectricityAccount", "ElectricityAmount"]

_LARGEST_PUE = 10.0  # the worst data centres measured are below 3: a larger one is a percentage, or a mistake


@dataclass(frozen=True, slots=True)
class ElectricityAmount:
    """The emissions, or the cost, of an energy.

    Attributes:
        amount: Grams of CO2 equivalent, or money; None if the energy was lost.
        uncertainty: How far it can be off, by the energy and by when it was taken: the half-width of the interval that
            holds the true amount if the signal is right. None if the energy was lost.
        stale_fraction: The share of the energy at a time for which the signal knew only its average.
    """

    amount: float | None = 0.0
    uncertainty: float | None = 0.0
    stale_fraction: float = 0.0


class ElectricityAccount:
    """Adds up what energy emitted and cost.

    The energy between two points in time is taken as evenly spread over it. Where a signal changes in between, the
    uncertainty covers any other way to spread it. So add short times: steps, not epochs.

    Args:
        signals: Carbon intensities, prices, or both, each of a unit of its own.
        pue: Power usage effectiveness of the data centre: all its energy over that of its computers, at least 1. It is
            never guessed: 1 stands for the computers alone.

    Raises:
        UsageError: An argument is wrong.
    """

    def __init__(self, signals: Sequence[Signal], pue: float = 1.0) -> None:
        self.signals: tuple[Signal, ...] = tuple(checked_list("signals", signals, checked_signal, "a list of signals"))
        """The signals."""
        self.pue: float = checked_number(
            "pue", pue, 1.0, _LARGEST_PUE, "energy of the data centre over that of its computers"
        )
        """Power usage effectiveness, as given."""
        units = [signal.facts.amount_unit for signal in self.signals]
        if len(set(units)) < len(units):
            raise UsageError(f"signals has two of the same unit ({', '.join(units)}); use one account for each")
        self._totals = {unit: _Total() for unit in units}

    def add(self, begin_seconds: float, end_seconds: float, energy: DeviceEnergy) -> None:
        """Add the energy of a time.

        Args:
            begin_seconds: The begin, in seconds since 1970 (Unix time).
            end_seconds: The end. One before the begin (a clock that was set back) counts as the begin.
            energy: What all devices took.
        """
        for signal in self.signals:
            parts = signal.parts(begin_seconds, max(begin_seconds, end_seconds))
            self._totals[signal.facts.amount_unit].add(energy, self.pue, parts)

    @property
    def amounts(self) -> dict[str, ElectricityAmount]:
        """What was emitted and paid until now, by unit: `{"g": ..., "EUR": ...}`."""
        return {unit: total.amount() for unit, total in self._totals.items()}


class _Total:
    """The sums of one signal."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._uncertainty = 0.0
        self._joules = 0.0
        self._stale_joules = 0.0
        self._is_lost = False

    def add(self, energy: DeviceEnergy, pue: float, parts: Sequence[SignalPart]) -> None:
        if energy.energy_joules is None:
            self._is_lost = True
            return
        kilowatt_hours = pue * kilowatt_hours_from_joules(energy.energy_joules)
        uncertain_kilowatt_hours = pue * kilowatt_hours_from_joules(energy.uncertainty_joules or 0.0)
        values, mean = [part.value for part in parts], mean_value(parts)
        lowest, highest = min(values), max(values)
        self._amount += kilowatt_hours * mean
        self._uncertainty += uncertain_kilowatt_hours * max(abs(lowest), abs(highest))
        self._uncertainty += kilowatt_hours * max(highest - mean, mean - lowest)
        self._joules += energy.energy_joules
        seconds = sum(part.seconds for part in parts)
        stale_seconds = sum(part.seconds for part in parts if part.is_stale)
        stale_fraction = stale_seconds / seconds if seconds > 0 else float(parts[0].is_stale)
        self._stale_joules += energy.energy_joules * stale_fraction

    def amount(self) -> ElectricityAmount:
        if self._is_lost:
            return ElectricityAmount(None, None, self._stale_fraction)
        return ElectricityAmount(self._amount, self._uncertainty, self._stale_fraction)

    @property
    def _stale_fraction(self) -> float:
        return self._stale_joules / self._joules if self._joules > 0 else 0.0
