"""What one rank has at hand while clocks are profiled, planned and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.agreement import Agreement
from zeus_core.optimizer.pipeline_frequency.background import Background
from zeus_core.optimizer.pipeline_frequency.clock_setter import ClockSetter
from zeus_core.optimizer.pipeline_frequency.iterations import Iteration
from zeus_core.optimizer.pipeline_frequency.job import Job
from zeus_core.optimizer.pipeline_frequency.place import PipelinePlace
from zeus_core.optimizer.pipeline_frequency.profile_store import profiles_to_json, save_profiles
from zeus_core.optimizer.pipeline_frequency.profiler import RankProfile
from zeus_core.optimizer.pipeline_frequency.settings import PipelineFrequencySettings

__all__ = ["NO_ANNOUNCEMENT", "Announcement", "Rank"]


class Announcement(NamedTuple):
    """How long an iteration takes elsewhere, as a rank was told; of several, the greatest holds.

    Attributes:
        number: Counts the announcements that a rank knows of.
        rank: Which rank was told.
        time_seconds: The time; None where nothing is waited for.
    """

    number: int = 0
    rank: int = 0
    time_seconds: float | None = None


NO_ANNOUNCEMENT = Announcement()
"""Nobody has told anything."""


@dataclass
class Rank:
    """One rank: what it was given, and what all ranks have agreed on so far.

    Attributes:
        monitor: Measures its GPU.
        place: Where it stands.
        settings: What the user wants.
        identity: What its profile depends on beside its GPU.
        agreement: What ties it to the others.
        make_setter: Makes what sets its clock, once that is wanted.
        background: Where its GPU is watched, and where rank 0 plans; not where clocks are set, which waits for nothing.
        job: All ranks.
        profiles: What each of them has measured, once it is enough to plan with; empty until then.
        baseline: What an iteration took at the clocks found.
        observations: What each of them has measured where clocks may not be set: at the clocks found alone.
        announcement: How long an iteration takes elsewhere, as somebody has told a rank of this job.
        kept: What an earlier run has measured, as kept in a checkpoint.
    """

    monitor: ZeusMonitor
    place: PipelinePlace
    settings: PipelineFrequencySettings
    identity: Mapping[str, Any]
    agreement: Agreement
    make_setter: Callable[[], ClockSetter]
    background: Background
    job: Job | None = None
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
        """Put the clock back to what was found, for good."""
        if self._setter is not None:
            self._setter.put_back()

    @property
    def is_first(self) -> bool:
        """Whether this rank decides what one alone can know."""
        return self.agreement.world.rank == 0

    def set_clock(self, clock_mhz: int | None) -> float | None:
        """Set the clock at once, or release it for None. Returns how long the driver took; None where it failed."""
        return self.agreement.attempt(lambda: self.setter.set_now(clock_mhz))

    def known_job(self) -> Job:
        """The job, which is known by now."""
        assert self.job is not None
        return self.job

    def known_baseline(self) -> Iteration:
        """The baseline, which is known by now."""
        assert self.baseline is not None
        return self.baseline

    def state(self) -> dict[str, Any]:
        """What was measured, in JSON's types; empty where nothing was."""
        if self.job is None or not self.profiles:
            return {}
        return profiles_to_json(self.job.fingerprint, self.profiles)

    def save(self) -> None:
        """Keep what was measured in the file of the user's, if there is one."""
        path = self.settings.profile_path
        if path is not None and self.is_first:
            save_profiles(Path(path), self.state())
