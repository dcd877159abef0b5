"""Emissions and cost of the energy of a window. Imported only where the electricity is stated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zeus_core.cli.metering import known_total
from zeus_core.electricity import Electricity
from zeus_core.measurement import Measurement
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charged_electricity import charge_source
from zeus_core.training.charges.charging import Charge, Charging
from zeus_core.units import amount_text


class WindowCharges:
    """Charges the energy of a window.

    Args:
        electricity: Its signals.

    Attributes:
        measurement: That of the whole window, with which the charges agree; None before its end.
    """

    def __init__(self, electricity: Electricity) -> None:
        self._electricity = electricity
        self._charging = Charging(electricity)
        self.measurement: Measurement | None = None

    def charge(self, measurement: Measurement, now_seconds: float) -> float:
        """Charge the energy since the latest call, and return after how many seconds it is due again.

        Args:
            measurement: That of the window so far.
            now_seconds: The clock, in seconds since 1970.
        """
        total, _ = known_total(measurement)
        if total.energy_joules is not None:
            self._charging.charge(Tally(measurement.time, total), now_seconds)
        return self._charging.due_after_seconds

    def lines(self) -> list[str]:
        """Return a line for the emissions and one for the cost, if they are known."""
        return [f"  {self._text(unit, charge)}" for unit, charge in self._known().items()]

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object: the amounts by unit, with all they follow from."""
        known, is_complete = self._known(), self._is_complete
        return {
            "pue": self._electricity.pue,
            "amounts": {
                signal.facts.amount_unit: {
                    "amount": charge.amount if charge is not None else None,
                    "uncertainty": charge.uncertainty if charge is not None else None,
                    "stale_fraction": charge.stale_fraction if charge is not None else None,
                    "is_complete": is_complete and charge is not None,
                    "unit": signal.facts.unit,
                    "source": signal.facts.source,
                    "basis": signal.facts.basis,
                }
                for signal in self._electricity.signals
                for charge in [known.get(signal.facts.amount_unit)]
            },
        }

    def _known(self) -> dict[str, Charge]:
        """Return the charges by unit: those of energy that was measured, by signals that did not fail."""
        return {
            unit: charge
            for unit, charge in self._charging.charges.items()
            if charge.missed_seconds == 0 and self.measurement is not None and charge.joules > 0
        }

    @property
    def _is_complete(self) -> bool:
        return self.measurement is not None and known_total(self.measurement)[1]

    def _text(self, unit: str, charge: Charge) -> str:
        (signal,) = [signal for signal in self._electricity.signals if signal.facts.amount_unit == unit]
        assert self.measurement is not None
        devices = _names(device.kind for device in self.measurement.devices)
        what = "g CO2 equivalent" if unit == "g" else unit
        least = "" if self._is_complete else "at least "
        stale = f"; {charge.stale_fraction:.0%} of it at the mean value" if charge.stale_fraction > 0 else ""
        source = charge_source(charge, signal, self._electricity.pue, devices)
        return f"{least}{amount_text(charge.amount, charge.uncertainty, what)} of {source}{stale}"


def _names(kinds: Iterable[str]) -> str:
    names = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory"}
    *others, last = [names[kind] for kind in dict.fromkeys(kinds)]
    return f"{', '.join(others)} and {last}" if others else last
