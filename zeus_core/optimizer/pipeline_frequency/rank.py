"""What one rank has at hand while clocks are profiled, planned and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.instruments import Reading
from zeus_core.optimizer.agreement import Agreement
from zeus_core.optimizer.pipeline_frequency.background import Background
from zeus_core.optimizer.pipeline_frequency.clock_setter import ClockSetter
from zeus_core.optimizer.pipeline_frequency.job import Job
from zeus_core.optimizer.pipeline_frequency.place import PipelinePlace
from zeus_core.optimizer.pipeline_frequency.profile_store import profiles_to_json, save_profiles
from zeus_core.optimizer.pipeline_frequency.profiler import RankProfile
from zeus_core.optimizer.pipeline_frequency.settings import PipelineFrequencySettings
from zeus_core.optimizer.pipeline_frequency.timeline import RecordedStep

__all__ = ["NO_ANNOUNCEMENT", "Announcement", "Iteration", "Rank", "StepWindow", "iteration_of"]


@dataclass(frozen=True)
class Iteration:
    """What iterations took.

    Attributes:
        step_seconds: Median duration, on the slowest rank.
        work_seconds: Median time up to the last computation, of each pipeline.
        energy_joules: Mean energy of all GPUs, from the beginning to the end of a step; None where it was lost.
    """

    step_seconds: float
    work_seconds: tuple[float, ...]
    energy_joules: float | None


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
        switch_seconds: How long the driver took for each clock that was set.
        job: All ranks.
        profiles: What each of them has measured, once it is enough to plan with; empty until then.
        baseline: What an iteration took at the clocks found.
        observations: The same where clocks may not be set: of the clocks found alone.
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
    switch_seconds: list[float] = field(default_factory=list)
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

    def set_clock(self, clock_mhz: int | None) -> None:
        """Set the clock at once, or release it for None."""
        seconds = self.agreement.attempt(lambda: self.setter.set_now(clock_mhz))
        if seconds is not None and clock_mhz is not None:
            self.switch_seconds.append(seconds)

    def knows(self) -> Job:
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


class StepWindow:
    """Some steps of one rank, and the energy in them; what lies between them is not in it.

    Args:
        rank: The rank.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._begin: Reading | None = None
        self._steps: list[RecordedStep] = []
        self._joules: list[float | None] = []

    def __len__(self) -> int:
        return len(self._steps)

    def begin_step(self) -> None:
        """A step begins."""
        self._begin = self._rank.monitor.read(sync_execution=False)

    def add(self, step: RecordedStep) -> None:
        """A step has ended."""
        self._steps.append(step)
        self._joules.append(self._step_joules())

    def report(self) -> dict[str, Any]:
        """What this rank tells of it, in JSON's types; the device may still be busy with the last step."""
        done = [(whole.seconds, step.work_seconds) for step in self._steps if (whole := step.whole) is not None]
        known = [joules for joules in self._joules if joules is not None]
        return {
            "step_seconds": [seconds for seconds, _ in done],
            "work_seconds": [seconds for _, seconds in done if seconds is not None],
            "energy_joules": fmean(known) if len(known) == len(self._joules) > 0 else None,
        }

    def _step_joules(self) -> float | None:
        begin, self._begin = self._begin, None
        if begin is None:
            return None
        (joules,) = self._rank.monitor.between(begin, self._rank.monitor.read(sync_execution=False)).gpu_energy.values()
        return joules


def iteration_of(job: Job, reports: Sequence[Mapping[str, Any]]) -> Iteration | None:
    """What iterations took, from what each rank has told of the same steps; None if no device was done with any."""
    if not all(it["step_seconds"] and it["work_seconds"] for it in reports):
        return None
    medians = [median(it["work_seconds"]) for it in reports]
    works = tuple(max(job.of_pipeline(medians, pipeline)) for pipeline in range(job.pipelines))
    energies = [it["energy_joules"] for it in reports]
    return Iteration(
        max(median(it["step_seconds"]) for it in reports),
        works,
        None if None in energies else sum(energies),
    )
