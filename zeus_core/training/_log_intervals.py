"""The values that are logged of the training steps, from one log to the next."""

from __future__ import annotations

import math
from collections import deque

from zeus_core.training._account import Account

__all__ = ["LogIntervals"]

# Trades the sharpness of logs that follow each other quickly for their steadiness: 20 updates of a counter.
_SMOOTHED_SECONDS = 2.0


class LogIntervals:
    """The training steps between two logs, of all ranks.

    Energy counters are updated every 0.1 s. If logs follow each other more quickly than `_SMOOTHED_SECONDS`, each is
    given its share of the energy of that time, by the mean power in it.

    Energy that could not be measured at a log, but can be at the next one, is part of the next one. Energy that is lost
    for good is left out.

    Args:
        max_watts: The most that all GPUs can draw: what a counter makes up for after a fault is no power of the moment.
    """

    def __init__(self, max_watts: float = math.inf) -> None:
        self._max_watts = max_watts
        self._logged = self._seen = Account()
        self._recent = deque([self._logged])

    @property
    def seen(self) -> Account:
        """The account of all ranks at the latest log."""
        return self._seen

    def next(self, now: Account) -> dict[str, float]:
        """Return the values to log at this moment; none if the energy is not known.

        Args:
            now: The account of all ranks, since the beginning of this part of the run.
        """
        is_lost_for_good = now.training.lost_seconds == self._seen.training.lost_seconds
        if (now.training - self._logged.training).lost_seconds > 0 and is_lost_for_good:
            self._logged = self._seen
            self._recent = deque([self._seen])
        self._seen = now
        seconds = (now.training - self._logged.training).seconds
        power_watts = self._recent_power_watts(now)
        if power_watts is None or power_watts <= 0 or seconds <= 0:
            return {}
        samples, tokens = now.samples - self._logged.samples, now.tokens - self._logged.tokens
        self._logged = now
        power_watts = min(power_watts, self._max_watts)
        joules = power_watts * seconds
        unit, count = ("token", tokens) if tokens > 0 else ("sample", samples)
        per_unit = {f"energy_per_{unit}_j": joules / count} if count > 0 else {}
        return {"energy_j": joules, "power_w": power_watts, **per_unit}

    def _recent_power_watts(self, now: Account) -> float | None:
        """Compute the mean power since the previous log, or over a little longer than that."""
        while len(self._recent) > 1 and (now.training - self._recent[1].training).seconds >= _SMOOTHED_SECONDS:
            self._recent.popleft()
        power_watts = (now.training - self._recent[0].training).power_watts
        if power_watts is not None:
            self._recent.append(now)
        return power_watts
