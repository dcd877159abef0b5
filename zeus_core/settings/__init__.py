"""Settings of GPUs: the kinds of them, who changes one, and how it is always restored.

`kinds` says what can be set: the power limit, the SM clock. A *knob* turns a kind of setting of some GPUs, by a *lease*
on each: it writes the original into the *ledger*, tells the *guardian* of the process, and checks that nobody else has
set another value. The modules that restoring needs load fast and small, as the guardian of each training process
imports them, and the daemon restores with them before it loads anything else: no `dataclasses`, and `typing` for type
checkers alone.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from zeus_core.settings.clock_knob import SmClockKnob
    from zeus_core.settings.kinds import Kind
    from zeus_core.settings.knob import Knob
    from zeus_core.settings.limit_knob import PowerLimitKnob

__all__ = ["Kind", "Knob", "PowerLimitKnob", "SmClockKnob"]

_MODULES = {
    "Kind": "kinds",
    "Knob": "knob",
    "PowerLimitKnob": "limit_knob",
    "SmClockKnob": "clock_knob",
}


def __getattr__(name: str) -> "Any":
    """Import a name on first use: restoring does without the knobs."""
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"zeus_core.settings.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
