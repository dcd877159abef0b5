"""Conversions between the units of drivers and the units of the core (joules, watts, seconds, MHz).

No other file has conversion factors. Milli- and micro-units are used only where a driver is called.
"""

# Exact by the definition of the units.
_MILLI_PER_UNIT = 1_000
_MICRO_PER_UNIT = 1_000_000
_KILO = 1_000
_JOULES_PER_WATT_HOUR = 3_600
_JOULES_PER_KILOWATT_HOUR = 3_600_000
_GRAMS = {"mg": "0.001", "g": "1", "kg": "1000", "t": "1000000", "lb": "453.59237"}


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
