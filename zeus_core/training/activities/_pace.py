"""The power of the activity under way, by which logs that follow each other quickly extend what was known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.training.activities._counted_gpus import CountedGpus
from zeus_core.training.activities.tally import Tally

# A log divides all energy anew if the latest division is older: that takes 1 to 3 ms, 0.3 % of this time.
_PACE_SECONDS = 1.0
_FIRST_PACE_SECONDS = 0.5  # by then, the power of an activity is known better
_RECENT_SECONDS = 0.3  # which show the power of an activity better than all its time does: three updates of a counter


class ActivityPower(NamedTuple):
    """The power of an activity at an update, and of gaps in it.

    Attributes:
        ends: When the next log is to divide all energy anew.
        tallies: Time and energy by the update, by activity.
        total: Those of all activities.
        joules: The energy of the activity, for each GPU.
        watts: For each GPU: since the update before, or of all its time if that is not long enough.
    """

    ends: float
    tallies: Mapping[Activity, Tally]
    total: Tally
    joules: list[float]
    watts: Mapping[Activity, list[float]]

    @classmethod
    def after(
        cls,
        last: ActivityPower | None,
        at: float,
        activity: Activity,
        tallies: Mapping[Activity, Tally],
        total: Tally,
        gpus: CountedGpus,
    ) -> ActivityPower | None:
        """Return the pace of an activity at the moment of an update; None if its power is not known.

        Args:
            last: The one at the update before; None if another activity has begun since.
            at: The moment.
            activity: The activity.
            tallies: Time and energy by the update, by activity, as far as they are known.
            total: Those of all activities.
            gpus: Know the energy of each GPU.
        """
        tally = tallies.get(activity)
        if tally is None or tally.seconds == 0 or tally.lost_seconds > 0:
            return None
        seconds, joules, ends = tally.seconds, gpus.joules(activity), at + _FIRST_PACE_SECONDS
        before = [0.0] * len(joules)
        if last is not None and activity in last.watts:
            recent_seconds = seconds - last.tallies[activity].seconds
            if recent_seconds >= _RECENT_SECONDS:
                seconds, before, ends = recent_seconds, last.joules, at + _PACE_SECONDS
        watts = {activity: _watts(gpus, joules, before, seconds)}
        gap = Activity.BETWEEN_STEPS
        gaps = tallies.get(gap)
        if activity is Activity.STEPS and gaps is not None and gaps.seconds > 0 and gaps.lost_seconds == 0:
            watts[gap] = _watts(gpus, gpus.joules(gap), [0.0] * len(joules), gaps.seconds)
        return cls(ends, tallies, total, joules, watts)

    def extended(
        self, seconds: Mapping[Activity, float], gpus: CountedGpus
    ) -> tuple[dict[Activity, Tally], Tally] | None:
        """Return time and energy by activity, and of all, at a later moment; None if the power is not known.

        Args:
            seconds: The time of each activity until then.
            gpus: Report the energy since the update, which is not taken back.
        """
        more = {}  # the seconds since the update
        for activity, length in seconds.items():
            before = self.tallies.get(activity)
            if before is None or length > before.seconds:
                more[activity] = length - (0.0 if before is None else before.seconds)
        if not more.keys() <= self.watts.keys():
            return None
        tallies, total = dict(self.tallies), self.total
        reported = gpus.report_more([(self.watts[activity], length) for activity, length in more.items()])
        for (activity, length), (joules, off_joules) in zip(more.items(), reported, strict=True):
            tally = Tally(length, DeviceEnergy(joules, off_joules, self.tallies[activity].measured.method))
            tallies[activity] += tally
            total += tally
        return tallies, total


def _watts(gpus: CountedGpus, joules: list[float], before: list[float], seconds: float) -> list[float]:
    """Return the mean power of each GPU, as far as it can be."""
    return [
        min(max(after - earlier, 0.0) / seconds, most_watts)
        for most_watts, after, earlier in zip(gpus.most_watts, joules, before, strict=True)
    ]
