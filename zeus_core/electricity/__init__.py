"""Carbon intensity and price of electricity over time, and what energy emitted and cost."""

from typing import TYPE_CHECKING

from zeus_core._lazy_names import imported_on_use as _imported_on_use
from zeus_core.electricity._recorded import RecordedSignal
from zeus_core.electricity._tariff import WeeklyTariff
from zeus_core.electricity.electricity_amount import Electricity, ElectricityAccount
from zeus_core.electricity.signal import ConstantSignal, Signal, SignalFacts, SignalPart

if TYPE_CHECKING:
    from zeus_core.electricity._electricity_maps import ElectricityMaps

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

if not TYPE_CHECKING:
    __getattr__, __dir__ = _imported_on_use(__name__, {"ElectricityMaps": "zeus_core.electricity._electricity_maps"})
