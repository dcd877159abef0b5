"""Carbon intensity and price of electricity over time, and what energy emitted and cost."""

from zeus_core.electricity._electricity_maps import ElectricityMaps
from zeus_core.electricity._recorded import RecordedSignal
from zeus_core.electricity._tariff import WeeklyTariff
from zeus_core.electricity.electricity_amount import Electricity, ElectricityAccount
from zeus_core.electricity.signal import ConstantSignal, Signal, SignalFacts, SignalPart

__all__ = [
    "ConstantSignal",
    "Electricity",
    "ElectricityAccount",
    "ElectricityMaps",
    "RecordedSignal",
    "Signal",
    "SignalFacts",
    "SignalPart",
    "WeeklyTariff",
]
