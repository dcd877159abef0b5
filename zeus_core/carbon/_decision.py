"""The log of the decisions of a training that follows the carbon intensity or the price of electricity."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from zeus_core.electricity import Signal
from zeus_core.units import amount_text, number_text

if TYPE_CHECKING:
    from zeus_core.optimizer.global_setting.director import DuePause

_logger = logging.getLogger(__name__)


class DecisionLog:
    """Logs the decisions of a training that change something, and each warning once.

    Args:
        signal: The signal that is followed.
        unit: The unit of the settings, such as "W".
    """

    def __init__(self, signal: Signal, unit: str) -> None:
        self._signal, self._unit = signal, unit
        self._latest = ""
        self._has_warned = self._has_warned_of_budget = False

    def reason(self, now: float) -> str:
        """Return the reason for a decision: the signal at the time."""
        (part,) = self._signal.parts(now, now)
        return f"the {signal_name(self._signal)} is {number_text(part.value)} {self._signal.facts.unit}"

    def note(self, setting: int | None, pause: DuePause | None, reason: str, budget_left: float | None) -> None:
        """Log a decision, if it differs from the one before.

        Args:
            setting: The setting of the steps; None in a pause.
            pause: The pause.
            reason: The reason for both.
            budget_left: The rest of the budget; None without one.
        """
        if pause is None or pause.until_seconds is None:
            text = f"training runs at {setting} {self._unit}"
        elif pause.ends_process:
            text = f"training ends, to go on at {time_text(pause.until_seconds)}"
        else:
            text = f"training pauses, by the forecast until {time_text(pause.until_seconds)}"
        if text != self._latest:
            self._latest = text
            rest = "" if budget_left is None else f"; of the budget {self._amount(budget_left)} is left"
            _logger.info("%s: %s%s", text, reason, rest)

    def warn_dear(self, budget_left: float, steps_left: int, until: str) -> None:
        """Warn that the budget is too small for the steps that are left."""
        if not self._has_warned_of_budget:
            self._has_warned_of_budget = True
            _logger.warning(
                "the budget cannot be kept: %s of it is left, too little for the %d steps left %s; training ends "
                "when it is spent",
                self._amount(budget_left),
                steps_left,
                until,
            )

    def warn_late(self, deadline: float, earliest: float) -> None:
        """Warn that training ends after its deadline, also at full speed, or with nothing to spare before it."""
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "the deadline, %s, %s: at full speed training ends %s, and it runs so",
                time_text(deadline),
                "cannot be kept" if earliest > deadline else "is close",
                time_text(earliest),
            )

    def _amount(self, amount: float) -> str:
        return amount_text(amount, 0.0, self._signal.facts.amount_unit)


def time_text(seconds: float) -> str:
    """Return a moment since 1970 for people."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def signal_name(signal: Signal) -> str:
    """Return the value of a signal in words."""
    return f"{'price' if signal.facts.is_price else 'carbon intensity'} of electricity"
