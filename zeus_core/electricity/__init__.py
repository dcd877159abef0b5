"""Carbon intensity and price of electricity over time, and what energy emitted and cost."""

from zeus_core.electricity._amount import ElectricityAccount, ElectricityAmount
from zeus_core.electricity._constant import ConstantSignal
from zeus_core.electricity._recorded import RecordedSignal
from zeus_core.electricity._signal import Signal, SignalFacts, SignalPart
from zeus_core.electricity._tariff import WeeklyTariff

__all__ = [
    "ConstantSignal",
    "ElectricityAccount",
    "ElectricityAmount",
    "RecordedSignal",
    "Signal",
    "SignalFacts",
    "SignalPart",
    "WeeklyTariff",
]
