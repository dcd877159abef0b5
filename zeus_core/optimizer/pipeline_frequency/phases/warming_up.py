"""Steps pass; then the ranks introduce themselves to each other."""

from __future__ import annotations

import logging
from pathlib import Path

from zeus_core.errors import UsageError
from zeus_core.optimizer.pipeline_frequency.deployment import Deployment
from zeus_core.optimizer.pipeline_frequency.job import Introduction, Job, job_of
from zeus_core.optimizer.pipeline_frequency.phases.comparing import Comparing
from zeus_core.optimizer.pipeline_frequency.phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency.phases.planning import Planning
from zeus_core.optimizer.pipeline_frequency.phases.profiling import Profiling
from zeus_core.optimizer.pipeline_frequency.phases.replaying import Replaying
from zeus_core.optimizer.pipeline_frequency.profile_store import load_profiles, profiles_from_json
from zeus_core.optimizer.pipeline_frequency.profiler import RankProfile
from zeus_core.optimizer.pipeline_frequency.rank import Rank
from zeus_core.optimizer.pipeline_frequency.timeline import RecordedStep
from zeus_core.pipeline import Plan, read_plan

__all__ = ["WarmingUp"]

_logger = logging.getLogger(__name__)


class WarmingUp(Phase):
    """Learns what the ranks run.

    Args:
        rank: This rank.
        steps: How many steps pass.
    """

    name = PhaseName.WARMING_UP

    def __init__(self, rank: Rank, steps: int) -> None:
        self._rank = rank
        self._steps_left = max(steps, 1)

    def end_step(self, step: RecordedStep) -> Phase:
        """Introduce this rank, in the end."""
        self._steps_left -= 1
        if self._steps_left > 0:
            return self
        rank = self._rank
        told = rank.agreement.exchange(self.name, lambda: self._introduction(step).to_json())
        job = job_of([Introduction.from_json(it) for it in told])
        is_the_same_work = rank.job is not None and rank.job.fingerprint == job.fingerprint
        rank.job = job
        rank.profiles = rank.profiles if is_the_same_work else self._known_profiles(job)
        if any(job.denials):
            return self._observe(job)
        if rank.settings.plan_path is not None:
            return Comparing(rank, self._deploy_file)
        return Comparing(rank, self._plan if rank.profiles else self._profile)

    def _introduction(self, step: RecordedStep) -> Introduction:
        rank = self._rank
        (gpu,) = rank.monitor.gpus.values()
        if not step.order:
            raise UsageError(f"rank {rank.agreement.world.rank} computed nothing in a step; report its instructions")
        clocks = tuple(it for it in rank.setter.clocks_mhz if it >= (rank.settings.lowest_clock_mhz or 0))
        if len(clocks) < 2:
            raise UsageError(
                f"lowest_clock_mhz is {rank.settings.lowest_clock_mhz!r}, which leaves {gpu.name} {len(clocks)} clocks "
                f"of {rank.setter.clocks_mhz[0]} to {rank.setter.clocks_mhz[-1]} MHz; leave it two at least"
            )
        return Introduction(rank.place, step.order, (gpu.uuid, gpu.name), clocks, rank.identity, rank.setter.may_set())

    def _known_profiles(self, job: Job) -> list[RankProfile]:
        """What an earlier run has measured, as rank 0 knows it."""
        known = self._rank.agreement.decide(self.name, lambda: [it.to_json() for it in self._look_up(job)])
        return [RankProfile.from_json(it) for it in known]

    def _look_up(self, job: Job) -> list[RankProfile]:
        path, kept = self._rank.settings.profile_path, self._rank.kept
        if kept:
            try:
                return profiles_from_json(kept, job.fingerprint)
            except UsageError as error:
                _logger.warning("the profile in the checkpoint is not used: %s", error)
        return (load_profiles(Path(path), job.fingerprint) if path is not None else None) or []

    def _observe(self, job: Job) -> Phase:
        _logger.warning(
            "clocks are not changed: %s. Training goes on as found, where its instructions are measured once",
            self._rank.agreement.complaint(job.denials),
        )
        return Profiling(self._rank, is_observing=True)

    def _profile(self) -> Phase:
        return Profiling(self._rank)

    def _plan(self) -> Phase:
        return Planning(self._rank)

    def _deploy_file(self) -> Phase:
        told = self._rank.agreement.decide(self.name, lambda: self._read_plan().to_json())
        job = self._rank.knows()
        return Replaying(self._rank, [Deployment.from_json(told)] * job.pipelines, None)

    def _read_plan(self) -> Deployment:
        path = self._rank.settings.plan_path
        assert path is not None
        plan = read_plan(path)
        _check_plan(path, plan, self._rank.knows())
        return Deployment.of_file(plan)


def _check_plan(path: str, plan: Plan, job: Job) -> None:
    schedule = job.schedules[0]
    if len(plan.schedule.ranks) != len(schedule.ranks):
        raise UsageError(
            f"plan_path is {path!r}, a plan for {len(plan.schedule.ranks)} pipeline ranks, and this job has "
            f"{len(schedule.ranks)}; plan it for this job"
        )
    for rank, (planned, run) in enumerate(zip(plan.schedule.ranks, schedule.ranks, strict=True)):
        if planned != run:
            raise UsageError(
                f"plan_path is {path!r}, whose rank {rank} runs {len(planned)} instructions in another order than the "
                f"{len(run)} of this job; plan it for this job's schedule, partition and microbatches"
            )
    unknown = {it for clocks in plan.clocks_mhz for it in clocks if it is not None} - set(job.clocks_mhz)
    if unknown:
        raise UsageError(
            f"plan_path is {path!r}, with clocks that the GPUs of this job do not support: {sorted(unknown)} MHz"
        )
