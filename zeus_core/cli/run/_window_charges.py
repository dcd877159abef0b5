"""Emissions and cost of the energy of a window. Imported only where the electricity is stated."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

from zeus_core.cli.metering import known_total
from zeus_core.electricity import Electricity
from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.time_source import clock_seconds
from zeus_core.process.sampler import Sampler
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charged_electricity import charge_source
from zeus_core.training.charges.charging import Charge, Charging
from zeus_core.units import amount_text

# Within such a time the energy counts as spread evenly, and the uncertainty covers any other way; a reading takes some
# milliseconds, so all of them less than 0.1 % of a core.
_PERIOD_SECONDS = 10.0


class WindowCharges:
    """Charges the energy of a window while it is open, in the background.

    Args:
        electricity: Its signals.
        monitor: Measures the window, which has just been opened.
        period_seconds: The time between two charges.
    """

    def __init__(self, electricity: Electricity, monitor: ZeusMonitor, period_seconds: float = _PERIOD_SECONDS) -> None:
        self._electricity = electricity
        self._charging = Charging(electricity)
        self._lock = Lock()
        self._measurement: Measurement | None = None  # of the whole window
        self._monitor = monitor
        self._first = monitor.read(sync_execution=False)
        self._sampler = Sampler(self.sample, period_seconds, name="zeus-core charges")
        self._sampler.start()

    def sample(self) -> None:
        """Charge what came since the latest call; nothing once the window has ended."""
        self._charge(self._monitor.between(self._first, self._monitor.read(sync_execution=False)))

    def end(self, measurement: Measurement) -> None:
        """Charge the rest.

        Args:
            measurement: That of the whole window, with which the charges agree.
        """
        self._sampler.stop()
        self._charge(measurement, is_last=True)

    def _charge(self, measurement: Measurement, is_last: bool = False) -> None:
        total, _ = known_total(measurement)
        with self._lock:
            if self._measurement is None and total.energy_joules is not None:
                self._charging.charge(Tally(measurement.time, total), clock_seconds(self._monitor.time_source))
            if is_last:
                self._measurement = measurement

    def lines(self) -> list[str]:
        """Return a line for the emissions and one for the cost, as far as they are known."""
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
            if charge.missed_seconds == 0 and self._measurement is not None and charge.joules > 0
        }

    @property
    def _is_complete(self) -> bool:
        return self._measurement is not None and known_total(self._measurement)[1]

    def _text(self, unit: str, charge: Charge) -> str:
        (signal,) = [signal for signal in self._electricity.signals if signal.facts.amount_unit == unit]
        assert self._measurement is not None
        devices = _names(device.kind for device in self._measurement.devices)
        what = "g CO2 equivalent" if unit == "g" else unit
        least = "" if self._is_complete else "at least "
        stale = f"; {charge.stale_fraction:.0%} of it at the mean value" if charge.stale_fraction > 0 else ""
        source = charge_source(charge, signal, self._electricity.pue, devices)
        return f"{least}{amount_text(charge.amount, charge.uncertainty, what)} of {source}{stale}"


def _names(kinds: Iterable[str]) -> str:
    names = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory"}
    *others, last = [names[kind] for kind in dict.fromkeys(kinds)]
    return f"{', '.join(others)} and {last}" if others else last
