"""The kinds of settings: one module each, and the table of them.

`Kind` says what a kind is, and what other packages may ask of one.
"""

from __future__ import annotations

from typing import Literal

from zeus_core.kinds.kind import Kind
from zeus_core.kinds.power_limit import POWER_LIMIT
from zeus_core.kinds.power_profile import POWER_PROFILE
from zeus_core.kinds.sm_clock import SM_CLOCK

__all__ = ["KINDS", "POWER_LIMIT", "POWER_PROFILE", "SM_CLOCK", "Kind", "KnobName"]

KINDS: dict[str, Kind] = {kind.name: kind for kind in (POWER_LIMIT, SM_CLOCK, POWER_PROFILE)}
"""All kinds, by the name in files and on the wire of the daemon. A new kind is one more entry."""

KnobName = Literal["power limit", "clock", "power profile", "auto"]
"""The `option` of a kind that an optimizer searches; "auto" for those that join it, one after another."""
