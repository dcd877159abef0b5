"""Emissions and cost of the electricity of a training run: as metrics, and as lines for people.

The sources of carbon intensity and prices are imported where one is given, and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeus_core.training.account import Account
from zeus_core.training.charges.charging import Charge
from zeus_core.units import amount_text, duration_text, energy_text, kilowatt_hours_from_joules, number_text
from zeus_core.validate import wrong_argument

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity, Signal

_GRAMS = "g"


def checked_electricity(electricity: Electricity | None) -> Electricity | None:
    """Return an `Electricity`, or None.

    Raises:
        UsageError: It is something else.
    """
    if electricity is None:
        return None
    from zeus_core.electricity import Electricity

    if not isinstance(electricity, Electricity):  # such as a signal alone: it would fail in a log
        wanted = "an Electricity, such as Electricity(ConstantSignal(380, 'g/kWh'))"
        raise wrong_argument("electricity", electricity, wanted)
    return electricity


def electricity_log_values(account: Account, electricity: Electricity) -> dict[str, float | None]:
    """Return the metrics of each log."""
    charges = _charges(account, electricity)
    return {name: None if charge is None else charge.amount for name, charge in charges.items()}


def electricity_summary_values(account: Account, electricity: Electricity | None) -> dict[str, float | None]:
    """Return the metrics of the end of training."""
    if electricity is None:
        return {}
    values: dict[str, float | None] = {
        "train_host_energy_j": account.host.energy_joules if account.host.seconds > 0 else None
    }
    for name, charge in _charges(account, electricity).items():
        if charge is not None:
            name, unit = (name.removesuffix("_g"), "_g") if name.endswith("_g") else (name, "")
            values[f"train_{name}{unit}"] = charge.amount
            values[f"train_{name}_uncertainty{unit}"] = charge.uncertainty
            values[f"train_{name}_stale_fraction"] = charge.stale_fraction
    return values


def electricity_rows(account: Account, electricity: Electricity | None) -> dict[str, str]:
    """Return lines for people; those of amounts in other units, as of earlier parts of the run, among them."""
    rows = {}
    if account.host.seconds > 0 and account.charges:
        rows["CPUs, memory"] = energy_text(account.host.measured_joules, account.host.measured.uncertainty_joules)
    signals = {} if electricity is None else {signal.facts.amount_unit: signal for signal in electricity.signals}
    for unit, charge in account.charges.items():
        label = "CO2" if unit == _GRAMS else "cost" if "cost" not in rows else f"cost in {unit}"
        rows[label] = _row(account, unit, charge, signals.get(unit), electricity)
    return rows


def electricity_source(account: Account, signal: Signal, electricity: Electricity) -> str:
    """Say what an amount of a run is of, and by which signal; see `charge_source`."""
    devices = "GPUs, CPUs and memory" if account.host.seconds > 0 else "GPUs"
    return charge_source(account.charges[signal.facts.amount_unit], signal, electricity.pue, devices)


def charge_source(charge: Charge, signal: Signal, pue: float, devices: str) -> str:
    """Say what a charge is of: "GPUs, without PUE, at 380 g/kWh (Germany, mean of 2024; average)"."""
    facts = signal.facts
    stated_pue = "without PUE" if pue == 1 else f"PUE {pue:g}"
    basis = "" if facts.basis is None else f"; {facts.basis}"
    kilowatt_hours = pue * kilowatt_hours_from_joules(charge.joules)
    value = charge.amount / kilowatt_hours if kilowatt_hours > 0 else facts.average
    return f"{devices}, {stated_pue}, at {number_text(value)} {facts.unit} ({facts.source}{basis})"


def _charges(account: Account, electricity: Electricity) -> dict[str, Charge | None]:
    """Return the charges by the name of their metric; None where one is not known."""
    currency = electricity.currency
    return {
        "co2_eq_g": None if electricity.intensity is None else account.known_charge(_GRAMS),
        "cost": None if currency is None else account.known_charge(currency),
    }


def _row(account: Account, unit: str, charge: Charge, signal: Signal | None, electricity: Electricity | None) -> str:
    text = amount_text(charge.amount, charge.uncertainty, unit)
    if account.known_charge(unit) is None:
        missed = max(charge.missed_seconds, account.total.lost_seconds, account.host.lost_seconds)
        text = f"at least {amount_text(charge.amount, 0.0, unit)}, without {duration_text(missed)} that are not known,"
    if signal is not None and electricity is not None:
        text += f" of {electricity_source(account, signal, electricity)}"
    if charge.stale_fraction > 0:
        text += f"; {charge.stale_fraction:.0%} of it at the mean value"
    return text
