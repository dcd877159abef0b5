"""Conversions between the units of drivers and the units of the core (joules, watts, seconds, MHz).

No other file has conversion factors. Milli- and micro-units are used only where a driver is called.
"""

# Exact by the definition of the units.
_MILLI_PER_UNIT = 1_000
_MICRO_PER_UNIT = 1_000_000
_KILO = 1_000
_JOULES_PER_WATT_HOUR = 3_600
_JOULES_PER_KILOWATT_HOUR = 3_600_000


def watts_from_milliwatts(power_milliwatts: int) -> float:
    """Convert a power from milliwatts to watts."""
    return power_milliwatts / _MILLI_PER_UNIT


def milliwatts_from_watts(power_watts: float) -> int:
    """Convert a power from watts to whole milliwatts, the resolution of the driver."""
    return round(power_watts * _MILLI_PER_UNIT)


def joules_from_millijoules(energy_millijoules: int) -> float:
    """Convert an energy from millijoules to joules."""
    return energy_millijoules / _MILLI_PER_UNIT


def joules_from_microjoules(energy_microjoules: int) -> float:
    """Convert an energy from microjoules to joules."""
    return energy_microjoules / _MICRO_PER_UNIT


def kilowatt_hours_from_joules(energy_joules: float) -> float:
    """Convert an energy from joules to kilowatt-hours, the unit of electricity bills."""
    return energy_joules / _JOULES_PER_KILOWATT_HOUR


def watt_hours_from_joules(energy_joules: float) -> float:
    """Convert an energy from joules to watt-hours."""
    return energy_joules / _JOULES_PER_WATT_HOUR


def per_kilowatt_hour_from_per_megawatt_hour(price: float) -> float:
    """Convert a price from per MWh, the unit of wholesale markets, to per kWh."""
    return price / _KILO
