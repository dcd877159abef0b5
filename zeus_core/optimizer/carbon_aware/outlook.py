"""The gain of following a signal, for a training on recorded days, beside full power, fixed settings, and foresight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.electricity import RecordedSignal
from zeus_core.optimizer.carbon_aware._controller import WorkController
from zeus_core.optimizer.carbon_aware._operating_points import OperatingPoint
from zeus_core.optimizer.carbon_aware._signal_replay import Replayed, best_mixture, replay


@dataclass(frozen=True)
class Outlook:
    """One training on recorded electricity, run in four ways.

    Attributes:
        begin_seconds: Its begin, in seconds since 1970.
        full: At the quickest setting, without pauses.
        static: At the one setting, or two in turn, that emit or cost least of those that are done when `aware` is.
        aware: By a `WorkController`, which knows the signal until the present only.
        foresight: The same if it knew the signal of all hours to come.
    """

    begin_seconds: float
    full: Replayed
    static: Replayed
    aware: Replayed
    foresight: Replayed

    def changes(self) -> dict[str, float]:
        """Return the change of emissions or cost from full power, as a fraction, by the way of running."""
        ways = {"static": self.static, "aware": self.aware, "foresight": self.foresight}
        return {name: way.amount / self.full.amount - 1 for name, way in ways.items()}


def outlook_of(
    points: Sequence[OperatingPoint],
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
    all_points = [*points, *([] if idle_watts is None else [OperatingPoint.pause(idle_watts)])]
    aware = replay(WorkController(all_points, signal, deadline).choose, signal, begin_seconds, steps)
    prophet = WorkController(all_points, foreseen(signal), deadline)
    return Outlook(
        begin_seconds,
        replay(lambda now, left: quickest, signal, begin_seconds, steps),
        best_mixture(points, signal, begin_seconds, steps, aware.end_seconds).replayed,
        aware,
        replay(prophet.choose, signal, begin_seconds, steps),
    )


def foreseen(signal: RecordedSignal) -> RecordedSignal:
    """Return the same signal as a prophet knows it."""
    parts = signal.parts(signal.begin_seconds, signal.end_seconds)
    times, values = [part.begin_seconds for part in parts], [part.value for part in parts]
    return RecordedSignal(times, values, signal.facts.unit, max_age_seconds=1e8, is_known_ahead=True)
