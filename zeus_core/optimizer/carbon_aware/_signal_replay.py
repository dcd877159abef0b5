"""Emissions, or cost, that a training would have had by a policy, on a recorded signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zeus_core.electricity import Signal
from zeus_core.electricity.signal import mean_value
from zeus_core.optimizer.carbon_aware._operating_points import OperatingPoint
from zeus_core.units import kilowatt_hours_from_joules

Policy = Callable[[float, float], OperatingPoint]
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
    present: OperatingPoint | None = None
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


def best_static(
    points: Sequence[OperatingPoint], signal: Signal, begin_seconds: float, steps: float, end_seconds: float
) -> Replayed:
    """Return the cheapest training at one setting all the time that is done by then, or else the quickest."""

    def at(point: OperatingPoint) -> Replayed:
        return replay(lambda now, left: point, signal, begin_seconds, steps)

    trained = [at(point) for point in points if point.steps_per_second > 0]
    in_time = [replayed for replayed in trained if replayed.end_seconds <= end_seconds]
    return min(in_time, key=lambda replayed: replayed.amount, default=min(trained, key=lambda one: one.end_seconds))
