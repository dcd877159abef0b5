"""The values that are logged of the training steps, from one log to the next."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from zeus_core.attribution.amount import whole_quanta
from zeus_core.events import Activity
from zeus_core.training.account import TRAINING, Account

# Trades the sharpness of logs that follow each other quickly for their steadiness: 20 updates of a counter.
_SMOOTHED_SECONDS = 2.0

# Of a total: so much less or more in all logs is not worth one more. Sensors are known to about 5 %.
_LITTLE = 0.005


class _Steps(NamedTuple):
    """The training steps up to a log."""

    seconds: float = 0.0
    joules: float = 0.0  # as far as it was measured
    lost_seconds: float = 0.0
    samples: int = 0
    tokens: int = 0


class LogIntervals:
    """The training steps between two logs, of all ranks.

    With E the energy of the steps as it is known at a log, and L the sum of all that was logged before, a log gets
    E - L: what is found out later of an interval is part of the next one, and all intervals add up to the whole.

    Energy counters are updated every 0.1 s. If logs follow each other more quickly than T = `_SMOOTHED_SECONDS`, each
    is given its share p t of the energy of that time, with p the mean power in it and t the time since the previous
    log; and of what was logged too little or too much, E - L - p t, the part t / T.

    Energy that could not be measured at a log, but can be at the next one, is part of the next one. Energy that is lost
    for good is left out.

    The evaluations are logged alike, each at its end, without smoothing.

    Args:
        max_watts: The most that all GPUs can draw: what a counter makes up for after a fault is no power of the moment.
    """

    def __init__(self, max_watts: float = math.inf) -> None:
        self._max_watts = max_watts
        self._seen = Account()
        self._seen_lost_seconds = 0.0
        self._logged = _Steps()
        self._recent = deque([self._logged])
        self._reported_joules = 0.0  # of the steps, logged or left out for good
        self._logged_evaluation_joules = 0.0

    @property
    def seen(self) -> Account:
        """The account of all ranks at the latest log."""
        return self._seen

    def next(self, now: Account) -> dict[str, float]:
        """Return the values to log at this moment; none if the energy is not known.

        Args:
            now: The account of all ranks, since the beginning of this part of the run.
        """
        steps = _steps(now)
        is_lost_for_good = steps.lost_seconds == self._seen_lost_seconds
        if steps.lost_seconds > self._logged.lost_seconds and is_lost_for_good:
            self._logged = _steps(self._seen)
            self._reported_joules = self._logged.joules
            self._recent = deque([self._logged])
        self._seen, self._seen_lost_seconds = now, steps.lost_seconds
        seconds = steps.seconds - self._logged.seconds
        power_watts = self._recent_power_watts(steps)
        if power_watts is None or power_watts <= 0 or seconds <= 0:
            return {}
        samples, tokens = steps.samples - self._logged.samples, steps.tokens - self._logged.tokens
        self._logged = steps
        power_watts = min(power_watts, self._max_watts)
        share_joules = power_watts * seconds
        missing_joules = steps.joules - self._reported_joules - share_joules
        # Multiples of the quantum of all energies: the sum of all logs is exact.
        joules = whole_quanta(max(share_joules + missing_joules * min(seconds / _SMOOTHED_SECONDS, 1.0), 0.0))
        self._reported_joules += joules
        unit, count = ("token", tokens) if tokens > 0 else ("sample", samples)
        per_unit = {f"energy_per_{unit}_j": joules / count} if count > 0 else {}
        return {"energy_j": joules, "power_w": power_watts, **per_unit}

    def next_evaluation(self, now: Account) -> float | None:
        """Return the energy of the evaluations since the previous call, in joules; None if it is not known."""
        tally = now.activities.get(Activity.EVALUATION)
        if tally is None or tally.lost_seconds > 0:
            return None
        joules = max(tally.measured_joules - self._logged_evaluation_joules, 0.0)
        self._logged_evaluation_joules += joules
        return joules

    def close(self, now: Account, has_stepped: bool) -> dict[str, float]:
        """Return what no log contains of the steps and evaluations of this part, at its end, if that matters.

        It is the last steps, evaluations that were not logged, and what was found out later of those that were: so it
        may be below zero. Energies of which some was lost are left out: there is no total that they add up to.

        Args:
            now: The account of all ranks, since the beginning of this part of the run.
            has_stepped: Whether there was a step since the latest log.
        """
        steps, evaluations = _steps(now), now.activities.get(Activity.EVALUATION)
        rest = {}
        if steps.lost_seconds == 0:
            joules = steps.joules - self._reported_joules
            if has_stepped or abs(joules) > _LITTLE * steps.joules:
                rest["energy_j"], self._reported_joules = joules, steps.joules
        if evaluations is not None and evaluations.lost_seconds == 0:
            joules = evaluations.measured_joules - self._logged_evaluation_joules
            if abs(joules) > _LITTLE * evaluations.measured_joules:
                rest["eval_energy_j"], self._logged_evaluation_joules = joules, evaluations.measured_joules
        self._logged, self._recent = steps, deque([steps])
        return rest

    def _recent_power_watts(self, now: _Steps) -> float | None:
        """Compute the mean power since the previous log, or over a little longer than that."""
        recent = self._recent
        while len(recent) > 1 and now.seconds - recent[1].seconds >= _SMOOTHED_SECONDS:
            recent.popleft()
        first = recent[0]
        if now.lost_seconds != first.lost_seconds or now.seconds <= first.seconds:
            return None
        recent.append(now)
        return (now.joules - first.joules) / (now.seconds - first.seconds)


def _steps(account: Account) -> _Steps:
    seconds = joules = lost_seconds = 0.0
    for activity in TRAINING:
        tally = account.activities.get(activity)
        if tally is not None:
            seconds += tally.seconds
            joules += tally.measured_joules
            lost_seconds += tally.lost_seconds
    return _Steps(seconds, joules, lost_seconds, account.samples, account.tokens)
