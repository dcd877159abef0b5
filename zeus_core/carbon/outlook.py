"""The gain of following a signal, for a training on recorded days, beside full power, fixed settings, and foresight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from zeus_core.carbon._carbon_schedule import SignalInterval, cheapest_schedule
from zeus_core.carbon._controller import WorkController
from zeus_core.carbon._signal_replay import Replayed, best_mixture, replay
from zeus_core.carbon.operating_points import TrainingPoint, lower_hull
from zeus_core.electricity import RecordedSignal
from zeus_core.units import kilowatt_hours_from_joules

_PART_SECONDS = 3600.0  # foresight may end a training at any of these


@dataclass(frozen=True)
class Outlook:
    """One training on recorded electricity, run in four ways.

    Attributes:
        begin_seconds: Its begin, in seconds since 1970.
        full: At the quickest setting, without pauses.
        static: At the one setting, or two in turn, that emit or cost least of those that are done when `aware` is.
        aware: By a `WorkController`, which knows the signal until the present only.
        foresight: The best that is possible for who knows the signal of all hours to come, and may change the point at
            any time.
    """

    begin_seconds: float
    full: Replayed
    static: Replayed
    aware: Replayed
    foresight: Replayed


def outlook_of(
    points: Sequence[TrainingPoint],
    idle_watts: float | None,
    signal: RecordedSignal,
    begin_seconds: float,
    steps: float,
    slowdown: float,
) -> Outlook:
    """Replay a training of some steps that may take so many times as long as at full power.

    Args:
        points: The points that train.
        idle_watts: The power of all devices in a pause; None if training may not pause.
        signal: The signal as it was.
        begin_seconds: The begin, in seconds since 1970.
        steps: The steps.
        slowdown: How many times as long as at full power training may take.
    """
    quickest = max(points, key=lambda point: point.steps_per_second)
    deadline = begin_seconds + slowdown * steps / quickest.steps_per_second
    all_points = [*points, *([] if idle_watts is None else [TrainingPoint.pause(idle_watts)])]
    aware = replay(WorkController(all_points, signal, deadline).choose, signal, begin_seconds, steps)
    return Outlook(
        begin_seconds,
        replay(lambda now, left: quickest, signal, begin_seconds, steps),
        best_mixture(points, signal, begin_seconds, steps, aware.end_seconds).replayed,
        aware,
        foresight(all_points, signal, begin_seconds, steps, deadline),
    )


def foresight(
    points: Sequence[TrainingPoint], signal: RecordedSignal, begin_seconds: float, steps: float, deadline: float
) -> Replayed:
    """Return the cheapest of all trainings that are done by the deadline, for who knows the signal ahead.

    Args:
        points: The points, that of a pause among them if training may pause.
        signal: The signal as it was.
        begin_seconds: The begin, in seconds since 1970.
        steps: The steps to be done, which the time is enough for.
        deadline: When they must be done.
    """
    hours = [*np.arange(begin_seconds, deadline, _PART_SECONDS), deadline]
    parts = [part for begin, end in pairwise(hours) for part in signal.parts(begin, end)]
    schedule = cheapest_schedule(points, [SignalInterval(part.seconds, part.value) for part in parts], steps)
    hull = lower_hull(points)
    speeds, watts = [point.steps_per_second for point in hull], [point.power_watts for point in hull]
    now, joules, amount = begin_seconds, 0.0, 0.0
    for part, speed in zip(parts, schedule.steps_per_second, strict=False):
        seconds = min(part.seconds, steps / speed) if speed > 0 else part.seconds
        energy_joules = seconds * float(np.interp(speed, speeds, watts))
        joules += energy_joules
        amount += part.value * kilowatt_hours_from_joules(energy_joules)
        steps -= seconds * speed
        now += seconds
    return Replayed(amount, joules, now, 0)
