"""The electricity of a run, and what energy emits and costs: energy times a signal, split where the signal changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from zeus_core.electricity.signal import Signal, checked_signal, mean_value
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy
from zeus_core.units import kilowatt_hours_from_joules
from zeus_core.validate import checked_number, shown

_LARGEST_PUE = 10.0  # data centres state 1.1 to 2: a number so much larger is a percentage, or a mistake


@dataclass(frozen=True)
class Electricity:
    """The electricity that a run uses, from which follows what its energy emits and costs.

        electricity = Electricity(ConstantSignal(380, "g/kWh", source="Germany, mean of 2024"), pue=1.2)

    Attributes:
        intensity: Its carbon intensity. It is never guessed: if None, no emissions are reported.
        price: Its price. If None, no cost is reported.
        pue: Power usage effectiveness: the energy of the data centre divided by that of its computers, at least 1. It
            is never guessed either: 1 counts the computers alone.
        location: Where the computers are, such as "Frankfurt, Germany", for model cards; left out if None.

    Raises:
        UsageError: An argument is wrong, or there is neither an intensity nor a price.
    """

    intensity: Signal | None = None
    price: Signal | None = None
    pue: float = 1.0
    location: str | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.intensity is None and self.price is None:
            raise UsageError(
                "Electricity has neither intensity nor price; give one, such as ConstantSignal(380, 'g/kWh')"
            )
        examples = {"intensity": "ConstantSignal(380, 'g/kWh')", "price": "ConstantSignal(0.3, 'EUR/kWh')"}
        for argument, example in examples.items():
            signal: Signal | None = getattr(self, argument)
            if signal is not None and checked_signal(argument, signal).facts.is_price != (argument == "price"):
                raise UsageError(
                    f"{argument} is {shown(signal)}, in {signal.facts.unit}; it must be like {example}, or None"
                )
        _checked_pue(self.pue)

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The intensity and the price, as far as they are given."""
        return tuple(signal for signal in (self.intensity, self.price) if signal is not None)

    @property
    def currency(self) -> str | None:
        """The currency of the price; None without one."""
        return None if self.price is None else self.price.facts.amount_unit


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


class ElectricityAccount:
    """Adds up what energy emitted and cost.

    The energy of an interval counts as spread evenly over it. Where a signal changes within the interval, the
    uncertainty covers every other way to spread the energy: short intervals, such as steps, give small uncertainties.

    Args:
        signals: Carbon intensities, prices, or both. No two of them have the same unit.
        pue: Power usage effectiveness, see `Electricity`.

    Raises:
        UsageError: An argument is wrong.
    """

    def __init__(self, signals: Sequence[Signal], pue: float = 1.0) -> None:
        self._signals = {checked_signal("signals", signal).facts.amount_unit: signal for signal in signals}
        if len(self._signals) < len(signals):
            raise UsageError("signals has two of the same unit; use an account for each of them")
        self._pue = _checked_pue(pue)
        self._joules, self._is_lost = 0.0, False
        # By unit: grams or money, the half-width of its interval, and joules charged at the average.
        self._sums = {unit: [0.0, 0.0, 0.0] for unit in self._signals}

    def add(self, begin_seconds: float, end_seconds: float, energy: DeviceEnergy) -> None:
        """Add the energy of an interval.

        Args:
            begin_seconds: When it begins, in seconds since 1970 (Unix time).
            end_seconds: When it ends. If that is before the begin (the clock was set back), the interval is empty, and
                its energy is charged at the value of the begin.
            energy: The energy of all devices.
        """
        joules, end_seconds = energy.energy_joules, max(begin_seconds, end_seconds)
        if joules is None:
            self._is_lost = True
            return
        self._joules += joules
        off_kilowatt_hours = self._pue * kilowatt_hours_from_joules(energy.uncertainty_joules or 0.0)
        for unit, signal in self._signals.items():
            charged = slice_of(signal, begin_seconds, end_seconds, joules, self._pue)
            more = charged.amount, charged.spread + off_kilowatt_hours * charged.highest, charged.stale_joules
            self._sums[unit] = [known + new for known, new in zip(self._sums[unit], more, strict=True)]

    @property
    def amounts(self) -> dict[str, ElectricityAmount]:
        """Emissions and cost of all energy added so far, by unit: `{"g": ..., "EUR": ...}`."""
        known = {
            unit: ElectricityAmount(amount, uncertainty, stale_joules / self._joules if self._joules > 0 else 0.0)
            for unit, (amount, uncertainty, stale_joules) in self._sums.items()
        }
        if self._is_lost:
            return {unit: replace(each, amount=None, uncertainty=None) for unit, each in known.items()}
        return known


def _checked_pue(pue: float) -> float:
    wanted = "the energy of the data centre divided by that of its computers, from 1 to 10, such as 1.2"
    return checked_number("pue", pue, 1.0, _LARGEST_PUE, wanted)
