"""A signal that stays the same."""

from __future__ import annotations

from zeus_core.electricity.signal import Basis, SignalFacts, SignalPart, checked_period


class ConstantSignal:
    """One value for all time, such as the yearly mean of a country or the price in a contract.

    Args:
        value: The value, in `unit`.
        unit: "g/kWh" for a carbon intensity, or a price such as "EUR/kWh"; per MWh is accepted, too.
        source: Where the value comes from, for reports.
        basis: The power plants it counts; without meaning for a price.

    Raises:
        UsageError: An argument is wrong.
    """

    def __init__(self, value: float, unit: str, source: str = "given", basis: Basis = "average") -> None:
        self.facts: SignalFacts = SignalFacts.checked(unit, source, basis, value, is_known_ahead=True)
        """Its unit, source and basis."""

    def parts(self, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return the one part of a period. See `Signal.parts`."""
        begin, end = checked_period(begin_seconds, end_seconds)
        return [SignalPart(begin, end, self.facts.average)]
