"""Contract tests: derive a class of your test suite from one to check an implementation. They need pytest."""

from zeus_core.testing.contracts._cpu import CpuContract
from zeus_core.testing.contracts._gpu import GpuContract
from zeus_core.testing.contracts._knob import KnobContract
from zeus_core.testing.contracts._optimum_selector import OptimumSelectorContract
from zeus_core.testing.contracts._search import SearchContract
from zeus_core.testing.contracts._signal import SignalContract
from zeus_core.testing.contracts._trial_store import TrialStoreContract
from zeus_core.testing.contracts._world import WorldContract

__all__ = [
    "CpuContract",
    "GpuContract",
    "KnobContract",
    "OptimumSelectorContract",
    "SearchContract",
    "SignalContract",
    "TrialStoreContract",
    "WorldContract",
]
