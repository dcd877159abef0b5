"""Emissions and cost of the energy of a window. Imported only where the electricity is stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zeus_core.cli.metering import known_total
from zeus_core.electricity import Electricity, Signal
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charged_electricity import charge_source
from zeus_core.training.charges.charging import Charge, Charging
from zeus_core.units import amount_text

if TYPE_CHECKING:
    from zeus_core.cli.run._window_samples import Sample

_NAMES = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory"}


class WindowCharges:
    """Charges the energy of a window, each sample at the values of its time.

    Args:
        electricity: Its signals.
        samples: Those of the whole window.
    """

    def __init__(self, electricity: Electricity, samples: Sequence[Sample]) -> None:
        self.electricity = electricity
        charging = Charging(electricity)
        for clock_seconds, measurement in samples:
            total, self._is_complete = known_total(measurement)
            if total.energy_joules is not None:
                charging.charge(Tally(measurement.time, total), clock_seconds)
        self._charged = charging.charges
        self._kinds = [device.kind for device in samples[-1].measurement.devices]

    def _charges(self) -> list[tuple[str, Signal, Charge | None]]:
        """Return unit, signal and charge; None where no energy was measured, or the signal failed."""
        return [
            (unit, signal, charge if charge.missed_seconds == 0 and charge.joules > 0 else None)
            for signal in self.electricity.signals
            for unit in [signal.facts.amount_unit]
            for charge in [self._charged[unit]]
        ]

    def lines(self) -> list[str]:
        """Return a line for the emissions and one for the cost, if they are known."""
        return [self._text(unit, signal, charge) for unit, signal, charge in self._charges() if charge is not None]

    def _text(self, unit: str, signal: Signal, charge: Charge) -> str:
        *others, last = dict.fromkeys(_NAMES[kind] for kind in self._kinds)
        devices = f"{', '.join(others)} and {last}" if others else last
        least = "" if self._is_complete else "at least "
        amount = amount_text(charge.amount, charge.uncertainty, "g CO2 equivalent" if unit == "g" else unit)
        source = charge_source(charge, signal, self.electricity.pue, devices)
        stale = f"; {charge.stale_fraction:.0%} of it at the mean value" if charge.stale_fraction > 0 else ""
        return f"  {least}{amount} of {source}{stale}"

    def to_json(self) -> dict[str, Any]:
        """Convert the amounts to a JSON object, by unit, with their signals."""
        return {
            unit: {
                "amount": charge and charge.amount,
                "uncertainty": charge and charge.uncertainty,
                "stale_fraction": charge and charge.stale_fraction,
                "is_complete": charge is not None and self._is_complete,
                "unit": signal.facts.unit,
                "source": signal.facts.source,
                "basis": signal.facts.basis,
            }
            for unit, signal, charge in self._charges()
        }

    def of_account(self, seconds: float) -> dict[str, Charge]:
        """Return the charges of an account of this time; where not all energy was charged, all of it was missed."""
        missed_seconds = 0.0 if self._is_complete else seconds
        return {
            unit: Charge(missed_seconds=seconds) if charge is None else replace(charge, missed_seconds=missed_seconds)
            for unit, _, charge in self._charges()
        }
