"""The electricity of a training: its carbon intensity, its price, and what the data centre adds."""

from __future__ import annotations

from dataclasses import dataclass

from zeus_core.electricity.electricity_amount import checked_pue
from zeus_core.electricity.signal import Signal, checked_signal
from zeus_core.errors import UsageError
from zeus_core.validate import checked_text, shown


@dataclass(frozen=True)
class Electricity:
    """The electricity that a training uses, from which follows what its energy emits and costs.

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
        _check("intensity", self.intensity, is_price=False, example="ConstantSignal(380, 'g/kWh')")
        _check("price", self.price, is_price=True, example="ConstantSignal(0.3, 'EUR/kWh')")
        checked_pue(self.pue)
        if self.location is not None:
            checked_text("location", self.location, 'the name of a place, such as "Frankfurt, Germany", or None')

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The intensity and the price, as far as they are given."""
        return tuple(signal for signal in (self.intensity, self.price) if signal is not None)

    @property
    def currency(self) -> str | None:
        """The currency of the price; None without one."""
        return None if self.price is None else self.price.facts.amount_unit


def _check(argument: str, signal: Signal | None, is_price: bool, example: str) -> None:
    if signal is not None and checked_signal(argument, signal).facts.is_price != is_price:
        raise UsageError(f"{argument} is {shown(signal)}, in {signal.facts.unit}; it must be like {example}, or None")
