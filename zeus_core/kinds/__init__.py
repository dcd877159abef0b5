"""The kinds of settings: one module each, and the table of them."""

from __future__ import annotations

from zeus_core.kinds.kind import Kind
from zeus_core.kinds.power_limit import POWER_LIMIT
from zeus_core.kinds.power_profile import POWER_PROFILE
from zeus_core.kinds.sm_clock import SM_CLOCK

__all__ = ["KINDS", "POWER_LIMIT", "POWER_PROFILE", "SM_CLOCK", "Kind"]

KINDS: dict[str, Kind] = {kind.name: kind for kind in (POWER_LIMIT, SM_CLOCK, POWER_PROFILE)}
"""All kinds, by the name in files and on the wire of the daemon. A new kind is one more entry."""
