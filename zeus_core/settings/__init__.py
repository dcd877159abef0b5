"""Settings of GPUs: the kinds of them, who changes one, and how it is always restored.

`kinds` says what can be set: the power limit, the SM clock. A *knob* turns a kind of setting of some GPUs, by a *lease*
on each: it writes the original into the *ledger* and to the *guardian* of the process, and checks that nobody else has
set another value. The modules that restoring needs load fast and small, as the guardian of each training process
imports them, and the daemon restores with them before it loads anything else: named tuples in place of `dataclasses`,
which take 10 ms to load.
"""

from zeus_core._lazy_names import imported_on_use as _imported_on_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from zeus_core.settings.clock_knob import SmClockKnob
    from zeus_core.settings.kinds import Kind
    from zeus_core.settings.knob import Knob
    from zeus_core.settings.limit_knob import PowerLimitKnob

__all__ = ["Kind", "Knob", "PowerLimitKnob", "SmClockKnob"]

_MODULES = {
    "Kind": "zeus_core.settings.kinds",
    "Knob": "zeus_core.settings.knob",
    "PowerLimitKnob": "zeus_core.settings.limit_knob",
    "SmClockKnob": "zeus_core.settings.clock_knob",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = _imported_on_use(__name__, _MODULES)
