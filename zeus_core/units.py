"""Units of drivers and of the core (joules, watts, seconds, MHz), and amounts as people read them.

No other file has conversion factors or rules of digits. Milli- and micro-units are used only where a driver is called.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

# Exact by the definition of the units.
_MILLI_PER_UNIT = 1_000
_MICRO_PER_UNIT = 1_000_000
_KILO = 1_000
_JOULES_PER_WATT_HOUR = 3_600
_JOULES_PER_KILOWATT_HOUR = 3_600_000
_GRAMS = {"mg": "0.001", "g": "1", "kg": "1000", "t": "1000000", "lb": "453.59237"}
_LARGE = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"))


def watts_from_milliwatts(power_milliwatts: int) -> float:
    """Convert a power from milliwatts to watts."""
    return power_milliwatts / _MILLI_PER_UNIT


def milliwatts_from_watts(power_watts: float) -> int:
    """Convert a power from watts to whole milliwatts, the resolution of the driver."""
    return round(power_watts * _MILLI_PER_UNIT)


def watts_from_microwatts(power_microwatts: int) -> float:
    """Convert a power from microwatts to watts."""
    return power_microwatts / _MICRO_PER_UNIT


def microwatts_from_watts(power_watts: float) -> int:
    """Convert a power from watts to whole microwatts, the resolution of sysfs."""
    return round(power_watts * _MICRO_PER_UNIT)


def joules_from_millijoules(energy_millijoules: float) -> float:
    """Convert an energy from millijoules to joules."""
    return energy_millijoules / _MILLI_PER_UNIT


def seconds_from_milliseconds(time_milliseconds: float) -> float:
    """Convert a time from milliseconds to seconds."""
    return time_milliseconds / _MILLI_PER_UNIT


def joules_from_microjoules(energy_microjoules: int) -> float:
    """Convert an energy from microjoules to joules."""
    return energy_microjoules / _MICRO_PER_UNIT


def joules_from_amd_units(energy_units: int) -> float:
    """Convert an energy from the unit of AMD's energy counters, 2^-16 J (gpu_metrics in kgd_pp_interface.h)."""
    return energy_units / 65_536


def kilowatt_hours_from_joules(energy_joules: float) -> float:
    """Convert an energy from joules to kilowatt-hours, the unit of electricity bills."""
    return energy_joules / _JOULES_PER_KILOWATT_HOUR


def watt_hours_from_joules(energy_joules: float) -> float:
    """Convert an energy from joules to watt-hours."""
    return energy_joules / _JOULES_PER_WATT_HOUR


def per_kilowatt_hour(value: float, amount: str, energy: str) -> float:
    """Convert a value per energy ("kWh" or "MWh") to per kWh: grams of a mass, and the same of any other amount.

    The result is the float nearest to the exact conversion of the decimal number, so that 80.1 per MWh are 0.0801.
    """
    from decimal import Decimal

    return float(Decimal(repr(value)) * Decimal(_GRAMS.get(amount, 1)) / (_KILO if energy == "MWh" else 1))


def energy_text(joules: float, uncertainty_joules: float | None = None) -> str:
    """Format an energy with its uncertainty, in the unit that keeps the digits few."""
    if uncertainty_joules is not None and not math.isfinite(uncertainty_joules):
        return "an unknown energy"
    largest = max(abs(joules), uncertainty_joules or 0.0)
    scale, unit = next(((scale, unit) for scale, unit in _LARGE if largest >= scale), (1.0, "J"))
    return amount_text(joules / scale, (uncertainty_joules or 0.0) / scale, unit)


def number_text(value: float, digits: int = 3) -> str:
    """Format a number for people: significant digits and all before the point; an exponent below 0.0001 alone."""
    if not 1e-4 <= abs(value) < math.inf:
        return f"{value:.{digits}g}"
    text = f"{value:.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def watt_hours_text(joules: float) -> str:
    """Format an energy in Wh, or in kWh from 1 kWh on."""
    watt_hours = watt_hours_from_joules(joules)
    return f"{number_text(watt_hours)} Wh" if watt_hours < 1000 else f"{number_text(watt_hours / 1000)} kWh"


def amount_text(amount: float, uncertainty: float, unit: str) -> str:
    """Format an amount with as many digits as its uncertainty leaves, or with three if that is 0."""
    if not uncertainty:
        return f"{number_text(amount)} {unit}".rstrip()
    decimals = max(1 - math.floor(math.log10(uncertainty)), 0)  # two digits of the uncertainty
    return f"{amount:.{decimals}f} ±{uncertainty:.{decimals}f} {unit}".rstrip()


def duration_text(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{number_text(seconds)} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def rows_html(rows: Mapping[str, str]) -> str | None:
    """Format labelled lines as a table for notebooks; None without any, for which they show what `repr` returns."""
    cells = (f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in rows.items())
    return f"<table>{''.join(cells)}</table>" if rows else None
