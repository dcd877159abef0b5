"""Contract tests: subclass one in your own test suite to check an implementation. They need pytest."""

from zeus_core.testing.contracts._gpu import GpuContract

__all__ = ["GpuContract"]
