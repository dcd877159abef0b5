"""Contract tests: derive a class of your test suite from one to check an implementation. They need pytest."""

from zeus_core.testing.contracts._cpu import CpuContract
from zeus_core.testing.contracts._gpu import GpuContract
from zeus_core.testing.contracts._knob import KnobContract

__all__ = ["CpuContract", "GpuContract", "KnobContract"]
