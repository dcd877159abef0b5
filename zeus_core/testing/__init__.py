"""Fakes and contracts for testing against this package; nothing in the package itself imports them."""

from zeus_core.testing.clock import VirtualClock

__all__ = ["VirtualClock"]
