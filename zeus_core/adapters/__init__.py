"""Helpers for integrations: contain faults, patch methods undoably, require a framework."""

from zeus_core.adapters._patch import Patches
from zeus_core.adapters._requires import require
from zeus_core.adapters.contained import contained

__all__ = [
    "Patches",
    "contained",
    "require",
]
