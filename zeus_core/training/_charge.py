"""Emissions, or cost, of some part of a training run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Charge"]


@dataclass(frozen=True)
class Charge:
    """Emissions, or cost, of energy.

    A charge tells how much time is not part of it, instead of being lost as a whole, as a `Tally` does.

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
