"""Carbon intensity and price of electricity over time, and what energy emitted and cost."""

from typing import TYPE_CHECKING, Any

from zeus_core.electricity._constant import ConstantSignal
from zeus_core.electricity._electricity import Electricity
from zeus_core.electricity._recorded import RecordedSignal
from zeus_core.electricity._tariff import WeeklyTariff
from zeus_core.electricity.electricity_amount import ElectricityAccount, ElectricityAmount
from zeus_core.electricity.signal import Signal, SignalFacts, SignalPart

if TYPE_CHECKING:
    from zeus_core.electricity._electricity_maps import ElectricityMaps

__all__ = [
    "ConstantSignal",
    "Electricity",
    "ElectricityAccount",
    "ElectricityAmount",
    "ElectricityMaps",
    "RecordedSignal",
    "Signal",
    "SignalFacts",
    "SignalPart",
    "WeeklyTariff",
]


def __getattr__(name: str) -> Any:
    """Import the live source, and what it needs for the network, on first use."""
    if name == "ElectricityMaps":
        from zeus_core.electricity._electricity_maps import ElectricityMaps

        return ElectricityMaps
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
