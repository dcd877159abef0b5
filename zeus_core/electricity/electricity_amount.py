"""Emissions, or cost, of energy: energy times a signal, split where the signal changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zeus_core.electricity.signal import Signal, checked_signal, mean_value
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy
from zeus_core.units import kilowatt_hours_from_joules
from zeus_core.validate import checked_list, checked_number

_LARGEST_PUE = 10.0  # data centres state 1.1 to 2: a number so much larger is a percentage, or a mistake


@dataclass(frozen=True, slots=True)
class ElectricityAmount:
    """The emissions, or the cost, of an energy.

    Attributes:
        amount: Grams of CO2 equivalent, or money; None if some of the energy was lost.
        uncertainty: The half-width of the interval that holds the true amount, if the signal is right: neither the
            energy nor the moments at which it was taken are known exactly. None if some of the energy was lost.
        stale_fraction: The share of the energy that was charged at the average of the signal, because no recent value
            was known.
    """

    amount: float | None = 0.0
    uncertainty: float | None = 0.0
    stale_fraction: float = 0.0


class ElectricityAccount:
    """Adds up what energy emitted and cost.

    The energy of an interval counts as spread evenly over it. Where a signal changes within the interval, the
    uncertainty covers every other way to spread the energy: short intervals, such as steps, give small uncertainties.

    Args:
        signals: Carbon intensities, prices, or both. No two of them have the same unit.
        pue: Power usage effectiveness: the energy of the data centre divided by that of its computers, at least 1. It
            is never guessed: 1 counts the computers alone.

    Raises:
        UsageError: An argument is wrong.
    """

    def __init__(self, signals: Sequence[Signal], pue: float = 1.0) -> None:
        self.signals: tuple[Signal, ...] = tuple(checked_list("signals", signals, checked_signal, "a list of signals"))
        """The signals."""
        self.pue: float = checked_pue(pue)
        """Power usage effectiveness, as given."""
        units = [signal.facts.amount_unit for signal in self.signals]
        if len(set(units)) < len(units):
            raise UsageError(f"signals has two of the same unit ({', '.join(units)}); use an account for each of them")
        self._totals = {unit: _Total() for unit in units}

    def add(self, begin_seconds: float, end_seconds: float, energy: DeviceEnergy) -> None:
        """Add the energy of an interval.

        Args:
            begin_seconds: When it begins, in seconds since 1970 (Unix time).
            end_seconds: When it ends. If that is before the begin (the clock was set back), the interval is empty, and
                its energy is charged at the value of the begin.
            energy: The energy of all devices.
        """
        for signal in self.signals:
            self._totals[signal.facts.amount_unit].add(
                energy, self.pue, signal, begin_seconds, max(begin_seconds, end_seconds)
            )

    @property
    def amounts(self) -> dict[str, ElectricityAmount]:
        """Emissions and cost of all energy added so far, by unit: `{"g": ..., "EUR": ...}`."""
        return {unit: total.amount() for unit, total in self._totals.items()}


class Slice(NamedTuple):
    """Emissions, or cost, of the energy of an interval.

    Attributes:
        amount: Grams, or money.
        spread: How far the amount can be off if the energy was not spread evenly over the interval.
        mean: The mean of the signal.
        highest: The largest magnitude of the signal.
        stale_joules: The energy that was charged at the average of the signal.
        stale_since_seconds: When the signal had no recent value first, in seconds since 1970; None if it always had.
    """

    amount: float
    spread: float
    mean: float
    highest: float
    stale_joules: float
    stale_since_seconds: float | None


def slice_of(signal: Signal, begin_seconds: float, end_seconds: float, energy_joules: float, pue: float) -> Slice:
    """Charge the energy of an interval, spread evenly over it, at the values that the signal has meanwhile.

    Raises:
        Exception: The signal raised it.
        UsageError: The signal returned no finite value.
    """
    parts = signal.parts(begin_seconds, end_seconds)
    mean, values = mean_value(parts), [part.value for part in parts]
    if not all(map(math.isfinite, values)):
        raise UsageError(f"{signal.facts.source} has values that are not finite numbers: {values}")
    kilowatt_hours = pue * kilowatt_hours_from_joules(energy_joules)
    stale = [part for part in parts if part.is_stale]
    seconds = sum(part.seconds for part in parts)
    stale_seconds = sum(part.seconds for part in stale)
    return Slice(
        kilowatt_hours * mean,
        abs(kilowatt_hours) * max(max(values) - mean, mean - min(values)),
        mean,
        max(map(abs, values)),
        energy_joules * (stale_seconds / seconds if seconds > 0 else float(bool(stale))),
        stale[0].begin_seconds if stale else None,
    )


def checked_pue(pue: float) -> float:
    """Return a power usage effectiveness.

    Raises:
        UsageError: It is something else, such as a percentage.
    """
    wanted = "the energy of the data centre divided by that of its computers, from 1 to 10, such as 1.2"
    return checked_number("pue", pue, 1.0, _LARGEST_PUE, wanted)


class _Total:
    """The sums of one signal."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._uncertainty = 0.0
        self._joules = 0.0
        self._stale_joules = 0.0
        self._is_lost = False

    def add(self, energy: DeviceEnergy, pue: float, signal: Signal, begin_seconds: float, end_seconds: float) -> None:
        if energy.energy_joules is None:
            self._is_lost = True
            return
        charged = slice_of(signal, begin_seconds, end_seconds, energy.energy_joules, pue)
        off_kilowatt_hours = pue * kilowatt_hours_from_joules(energy.uncertainty_joules or 0.0)
        self._amount += charged.amount
        self._uncertainty += charged.spread + off_kilowatt_hours * charged.highest
        self._joules += energy.energy_joules
        self._stale_joules += charged.stale_joules

    def amount(self) -> ElectricityAmount:
        stale_fraction = self._stale_joules / self._joules if self._joules > 0 else 0.0
        if self._is_lost:
            return ElectricityAmount(None, None, stale_fraction)
        return ElectricityAmount(self._amount, self._uncertainty, stale_fraction)
