"""Speed and power of training at a setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.search import Trial
from zeus_core.validate import checked_number


@dataclass(frozen=True)
class TrainingPoint:
    """The speed and the power of training at one setting.

    Attributes:
        setting: The setting of the knob (watts, MHz); None for a pause.
        steps_per_second: Training steps a second; 0 in a pause.
        power_watts: The mean power of all devices; in a pause, of those that are idle.
    """

    setting: int | None
    steps_per_second: float
    power_watts: float

    @classmethod
    def from_trial(cls, trial: Trial) -> TrainingPoint:
        """Make the point that a trial measured."""
        return cls(trial.setting, 1.0 / trial.seconds_per_step, trial.joules_per_step / trial.seconds_per_step)

    @classmethod
    def pause(cls, idle_watts: float) -> TrainingPoint:
        """Make the point of a pause, in which all devices together draw their idle power."""
        return cls(None, 0.0, idle_watts)


def checked_points(points: Sequence[TrainingPoint]) -> list[TrainingPoint]:
    """Return points, of which at least one trains, the quickest first.

    Raises:
        UsageError: None of them trains, or one has a speed or a power that cannot be.
    """
    checked = [_checked_point(f"points[{place}]", point) for place, point in enumerate(points)]
    if not any(point.steps_per_second > 0 for point in checked):
        raise UsageError("points has no point that trains; give at least one point that trains")
    return sorted(checked, key=lambda point: (-point.steps_per_second, point.power_watts))


def lower_hull(points: Sequence[TrainingPoint]) -> list[TrainingPoint]:
    """Return the points that draw least for their speed, slowest first: the lower convex hull of power over speed.

    Two of them, in turn, are quicker or draw less than any other point: no schedule needs the rest.
    """
    hull: list[TrainingPoint] = []
    for point in sorted(points, key=lambda point: (point.steps_per_second, point.power_watts)):
        if hull and point.steps_per_second == hull[-1].steps_per_second:
            continue
        while len(hull) >= 2 and _slope(hull[-2], point) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        while len(hull) == 1 and point.power_watts <= hull[0].power_watts:
            hull.pop()
        hull.append(point)
    return hull


def _slope(slow: TrainingPoint, quick: TrainingPoint) -> float:
    """Return the joules of a step more."""
    return (quick.power_watts - slow.power_watts) / (quick.steps_per_second - slow.steps_per_second)


def _checked_point(argument: str, point: TrainingPoint) -> TrainingPoint:
    checked_number(f"{argument}.steps_per_second", point.steps_per_second, 0.0, 1e9, "steps a second, at least 0")
    checked_number(f"{argument}.power_watts", point.power_watts, 0.0, 1e9, "watts, at least 0")
    return point
