"""Emissions, or cost, that a training would have had by a policy, on a recorded signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zeus_core.carbon.operating_points import TrainingPoint, lower_hull
from zeus_core.electricity import Signal
from zeus_core.electricity.signal import mean_value
from zeus_core.units import kilowatt_hours_from_joules

Policy = Callable[[float, float], TrainingPoint]
"""Returns the point to be at, from the time (seconds since 1970) and the steps left."""


@dataclass(frozen=True)
class Replayed:
    """A training that was replayed.

    Attributes:
        amount: Its emissions (grams), or its cost.
        energy_joules: Its energy, pauses included.
        end_seconds: When the steps were done, in seconds since 1970.
        switches: How often the setting changed.
    """

    amount: float
    energy_joules: float
    end_seconds: float
    switches: int


def replay(
    policy: Policy,
    signal: Signal,
    begin_seconds: float,
    steps: float,
    interval_seconds: float = 3600.0,
    true_speed: Callable[[float], float] = lambda seconds: 1.0,
) -> Replayed:
    """Replay a training, in which the policy decides at the begin and at all multiples of the interval.

    Args:
        policy: Decides.
        signal: The signal as it was.
        begin_seconds: The begin, in seconds since 1970.
        steps: The steps to be done.
        interval_seconds: The time between decisions.
        true_speed: How much faster than stated the training is at a time; for trials of what a policy must bear.

    Raises:
        RuntimeError: The policy pauses for 100 days.
    """
    now, amount, joules, switches = begin_seconds, 0.0, 0.0, 0
    present: TrainingPoint | None = None
    last_progress = now
    while steps > 0:
        point = policy(now, steps)
        switches += present is not None and point.setting != present.setting
        present = point
        until = (math.floor(now / interval_seconds) + 1) * interval_seconds
        speed = point.steps_per_second * true_speed(now)
        if speed > 0:
            until, last_progress = min(until, now + steps / speed), now
        elif now - last_progress > 100 * 86_400:
            raise RuntimeError("the policy pauses for 100 days")
        # The rest of floats: less than a billionth of the steps.
        steps = 0.0 if speed > 0 and until == now + steps / speed else steps - speed * (until - now)
        energy_joules = point.power_watts * (until - now)
        amount += kilowatt_hours_from_joules(energy_joules) * mean_value(signal.parts(now, until))
        joules += energy_joules
        now = until
    return Replayed(amount, joules, now, switches)


@dataclass(frozen=True)
class Mixture:
    """A training that does not follow the signal.

    Attributes:
        points: The one point that it trains at, or the two that it changes between all the time, the slower one first.
        shares: The share of the time at each.
        replayed: Its emissions or cost.
    """

    points: tuple[TrainingPoint, ...]
    shares: tuple[float, ...]
    replayed: Replayed

    def error_fraction(self, errors: Mapping[int, float]) -> float:
        """Return how far its energy can be off, from that of a step at each setting: both may be off the same way."""
        joules = [share * point.power_watts for share, point in zip(self.shares, self.points, strict=True)]
        parts = zip(joules, self.points, strict=True)
        return sum(part * errors.get(point.setting or 0, 0.0) for part, point in parts) / sum(joules)


def best_mixture(
    points: Sequence[TrainingPoint], signal: Signal, begin_seconds: float, steps: float, end_seconds: float
) -> Mixture:
    """Return the cheapest training that is done by a time and does not follow the signal, or else the quickest.

    At the mean speed v = steps / time, two settings in turn draw the lower convex hull of power over speed at v, which
    no single setting is below: P(v) = P_a + (P_b - P_a) (v - v_a) / (v_b - v_a). Ending sooner is considered at each
    point of the hull.

    Args:
        points: The points, of which those that train are used.
        signal: The signal as it was.
        begin_seconds: The begin, in seconds since 1970.
        steps: The steps to be done.
        end_seconds: When they must be done.
    """
    hull = lower_hull([point for point in points if point.steps_per_second > 0])
    speed = steps / max(end_seconds - begin_seconds, 1e-9)
    # The rest of floats: a training that ends when its own setting does is done in time.
    candidates = [Mixture((point,), (1.0,), _at(point, signal, begin_seconds, steps)) for point in hull]
    in_time = [one for one in candidates if one.points[0].steps_per_second >= speed * (1 - 1e-9)]
    for slow, quick in pairwise(hull):
        if slow.steps_per_second < speed < quick.steps_per_second:
            share = (speed - slow.steps_per_second) / (quick.steps_per_second - slow.steps_per_second)
            watts = slow.power_watts + share * (quick.power_watts - slow.power_watts)
            mixed = _at(TrainingPoint(None, speed, watts), signal, begin_seconds, steps)
            in_time.append(Mixture((slow, quick), (1 - share, share), mixed))
    return min(in_time, key=lambda one: one.replayed.amount, default=candidates[-1])


def _at(point: TrainingPoint, signal: Signal, begin_seconds: float, steps: float) -> Replayed:
    return replay(lambda now, left: point, signal, begin_seconds, steps)
