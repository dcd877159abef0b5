"""Conversions between the units drivers speak and the units of the core (joules, watts, seconds, MHz).

The only file with conversion factors. Milli- and micro-units exist at the driver edge alone.
"""

__all__ = [
    "joules_from_microjoules",
    "joules_from_millijoules",
    "kilowatt_hours_from_joules",
    "milliwatts_from_watts",
    "watts_from_milliwatts",
]

_MILLI_PER_UNIT = 1_000
_MICRO_PER_UNIT = 1_000_000
_JOULES_PER_KILOWATT_HOUR = 3_600_000


def watts_from_milliwatts(power_milliwatts: int) -> float:
    """Watts of a power the driver states in milliwatts."""
    return power_milliwatts / _MILLI_PER_UNIT


def milliwatts_from_watts(power_watts: float) -> int:
    """Whole milliwatts, the resolution of the driver, of a power in watts."""
    return round(power_watts * _MILLI_PER_UNIT)


def joules_from_millijoules(energy_millijoules: int) -> float:
    """Joules of an energy the driver states in millijoules."""
    return energy_millijoules / _MILLI_PER_UNIT


def joules_from_microjoules(energy_microjoules: int) -> float:
    """Joules of an energy stated in microjoules."""
    return energy_microjoules / _MICRO_PER_UNIT


def kilowatt_hours_from_joules(energy_joules: float) -> float:
    """Kilowatt-hours, the unit of electricity bills, of an energy in joules."""
    return energy_joules / _JOULES_PER_KILOWATT_HOUR
