"""Contract tests: derive a class of your test suite from one to check an implementation. They need pytest."""

from zeus_core.testing.contracts._cpu_contract import CpuContract
from zeus_core.testing.contracts._gpu_contract import GpuContract
from zeus_core.testing.contracts._knob_contract import KnobContract
from zeus_core.testing.contracts._optimum_selector import OptimumSelectorContract
from zeus_core.testing.contracts._search_contract import SearchContract
from zeus_core.testing.contracts._signal_contract import SignalContract
from zeus_core.testing.contracts._world_contract import WorldContract

__all__ = [
    "CpuContract",
    "GpuContract",
    "KnobContract",
    "OptimumSelectorContract",
    "SearchContract",
    "SignalContract",
    "WorldContract",
]
