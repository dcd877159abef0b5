"""A setting of its own for each activity, as an extension of the search of an optimizer: `activities="each"`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zeus_core.activities.activity_limiter import ActivityLimiter
from zeus_core.activities.activity_search import ActivitySearch
from zeus_core.activities.activity_visits import RankActivities
from zeus_core.device import Gpu
from zeus_core.errors import UsageError
from zeus_core.events import Event
from zeus_core.kinds import Kind
from zeus_core.optimizer.global_setting.measuring import TrialRecorder
from zeus_core.optimizer.global_setting.search_options import SearchOptions
from zeus_core.settings.holders import KnobUser
from zeus_core.validate import shown


class OwnSettings:
    """An `Extension` by which steps, and each activity that the loop announces, have settings of their own.

    Args:
        options: The arguments of the optimizer.
        recorder: Measures the steps.

    Raises:
        UsageError: The search is not one that activities can share.
    """

    def __init__(self, options: SearchOptions, recorder: TrialRecorder) -> None:
        _check(options)
        self._changes_per_hour = options.changes_per_hour
        self._time_source = recorder.time_source
        self._visits = RankActivities(recorder)
        self._latest: ActivitySearch | None = None

    def receive(self, event: Event) -> None:
        """Follow an event: activities begin and end."""
        self._visits.receive(event)

    def limiter(self, gpus: Sequence[Gpu], kind: Kind, user: KnobUser, observes: bool) -> ActivityLimiter:
        """Make what applies the settings of a training on this rank."""
        return ActivityLimiter(gpus, kind, user, observes, self._time_source, self._changes_per_hour)

    def search(self, resumed: Any, *arguments: Any) -> ActivitySearch:
        """Make the search of a training; see `Extension.search`."""
        self._latest = ActivitySearch(self._visits, self._latest, resumed, *arguments)
        return self._latest


def _check(options: SearchOptions) -> None:
    others = {"search": options.make, "profile_steps": options.profile_steps}
    for argument, value in others.items():
        if value is not None:
            raise UsageError(f'{argument} is {shown(value)}, and activities is "each"; pass one without the other')
    if not any(kind.has_curves for kind in options.kinds):
        words = options.kinds[0].words
        raise UsageError(f'activities is "each", which is for power limits and clocks, and not for a {words}')
