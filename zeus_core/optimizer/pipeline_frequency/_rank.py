"""The state of one rank while clocks are profiled, planned and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.pipeline_frequency._clock_setter import ClockSetter
from zeus_core.optimizer.pipeline_frequency._iterations import Iteration
from zeus_core.optimizer.pipeline_frequency._pipeline_job import PipelineJob
from zeus_core.optimizer.pipeline_frequency._pipeline_rank import PipelineRank
from zeus_core.optimizer.pipeline_frequency._profile_store import profiles_to_json, save_profiles
from zeus_core.optimizer.pipeline_frequency._profiler import RankProfile
from zeus_core.optimizer.pipeline_frequency._settings import PipelineFrequencySettings
from zeus_core.ports import Background, Exchange

__all__ = ["NO_ANNOUNCEMENT", "Announcement", "Rank"]


class Announcement(NamedTuple):
    """How long an iteration takes elsewhere, as announced on a rank; of several, the greatest counts.

    Attributes:
        number: Counts the announcements that a rank knows of.
        rank: The rank it was announced on.
        time_seconds: The time; None if there is nothing to wait for.
    """

    number: int = 0
    rank: int = 0
    time_seconds: float | None = None


NO_ANNOUNCEMENT = Announcement()
"""Nothing has been announced."""


@dataclass
class Rank:
    """One rank: what it was given, and what all ranks have agreed on so far.

    Attributes:
        monitor: Measures its GPU.
        pipeline_rank: Its position among the pipelines.
        settings: The user's settings.
        identity: What its profile depends on besides its GPU.
        exchange: Its exchanges with the other ranks.
        make_setter: Makes what sets its clock, when first needed.
        background: Where its GPU is watched, and where rank 0 plans. Clocks are set elsewhere, and wait for neither.
        job: All ranks; None until they have introduced themselves.
        profiles: What each rank has measured, once it is enough to plan with; empty until then.
        baseline: What an iteration took at the original clocks.
        observations: What each rank has measured where clocks may not be set: at the original clocks only.
        announcement: How long an iteration takes elsewhere, as announced on some rank of this job.
        kept: What an earlier run has measured, as saved in a checkpoint.
    """

    monitor: ZeusMonitor
    pipeline_rank: PipelineRank
    settings: PipelineFrequencySettings
    identity: Mapping[str, Any]
    exchange: Exchange
    make_setter: Callable[[], ClockSetter]
    background: Background
    job: PipelineJob | None = None
    profiles: Sequence[RankProfile] = ()
    baseline: Iteration | None = None
    observations: Sequence[RankProfile] = ()
    announcement: Announcement = NO_ANNOUNCEMENT
    kept: Any = None
    _setter: ClockSetter | None = None

    @property
    def setter(self) -> ClockSetter:
        """Sets its clock."""
        if self._setter is None:
            self._setter = self.make_setter()
        return self._setter

    def put_back(self) -> None:
        """Restore the original clock, for good."""
        if self._setter is not None:
            self._setter.put_back()

    @property
    def is_first(self) -> bool:
        """Whether facts only one rank can have are taken from this one."""
        return self.exchange.rank == 0

    def set_clock(self, clock_mhz: int | None) -> float | None:
        """Set the clock at once, or release it for None. Returns the seconds the driver took; None if it failed."""
        return self.exchange.attempt(lambda: self.setter.set_now(clock_mhz))

    def known_job(self) -> PipelineJob:
        """The job, which is known by now."""
        assert self.job is not None
        return self.job

    def known_baseline(self) -> Iteration:
        """The baseline, which is known by now."""
        assert self.baseline is not None
        return self.baseline

    @property
    def allowed_step_seconds(self) -> float:
        """The maximum duration of an iteration that the user allows; the baseline is known by now."""
        return self.settings.slowdown_factor * self.known_baseline().step_seconds

    def state(self) -> dict[str, Any]:
        """What was measured, in JSON types; empty if nothing was."""
        if self.job is None or not self.profiles:
            return {}
        return profiles_to_json(self.job.fingerprint, self.profiles)

    def save(self) -> None:
        """Save what was measured in the user's file, if one is set."""
        path = self.settings.profile_path
        if path is not None and self.is_first:
            save_profiles(Path(path), self.state())
