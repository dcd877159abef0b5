"""The order of the phases."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.optimizer.pipeline_frequency._deployment import Deployment, check_time, read_deployment
from zeus_core.optimizer.pipeline_frequency._phases.measuring_baseline import MeasuringBaseline
from zeus_core.optimizer.pipeline_frequency._phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency._phases.planning import Planning
from zeus_core.optimizer.pipeline_frequency._phases.profiling import Profiling
from zeus_core.optimizer.pipeline_frequency._phases.replaying import Replaying
from zeus_core.optimizer.pipeline_frequency._phases.resting import Resting
from zeus_core.optimizer.pipeline_frequency._phases.warming_up import WarmingUp
from zeus_core.optimizer.pipeline_frequency._pipeline_job import PipelineJob, check_clocks, pipeline_profile
from zeus_core.optimizer.pipeline_frequency._planner import highest_clocks_seconds
from zeus_core.optimizer.pipeline_frequency._planning_task import PlanningTask
from zeus_core.optimizer.pipeline_frequency._profile_store import load_profiles, profiles_from_json
from zeus_core.optimizer.pipeline_frequency._profiler import RankProfile
from zeus_core.optimizer.pipeline_frequency._rank import Rank

__all__ = ["Course"]

_MOST_BACK_OFFS = 3
_PATIENCE = 4
_FORGIVING_WINDOWS = 5
_LEAST_AGREEMENT, _MOST_AGREEMENT = 0.9, 1.5  # an iteration's work over the time of its instructions

_logger = logging.getLogger(__name__)


class Course:
    """The sequence of phases of one rank, the same on all ranks.

    Args:
        rank: The rank.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._time_budget_factor = 1.0  # the maximum iteration time to plan for, over the user's
        self._back_offs = 0
        self._patience = 0  # how many more times in a row the plan in force may be too slow
        self._task: PlanningTask | None = None

    def begin(self) -> Phase:
        """The first phase."""
        return WarmingUp(self._rank, self._rank.settings.warmup_steps, self._after_introduction)

    def _after_introduction(self, job: PipelineJob) -> Phase:
        rank = self._rank
        is_the_same_work = rank.job is not None and rank.job.fingerprint == job.fingerprint
        rank.job = job
        if any(job.permission_problems):
            return self._observe(job)
        if rank.settings.plan_path is not None:
            return MeasuringBaseline(rank, partial(self._deploy_file, rank.settings.plan_path))
        if not is_the_same_work:
            rank.profiles = self._known_profiles(job)
        return MeasuringBaseline(rank, self._plan_if_true if rank.profiles else self._profile)

    def _observe(self, job: PipelineJob) -> Phase:
        _logger.warning(
            "clocks will not be changed: %s. Training continues at the original clocks; "
            "its instructions are measured once",
            self._rank.exchange.complaint(job.permission_problems),
        )
        return MeasuringBaseline(self._rank, lambda: Profiling(self._rank, self._after_observing, is_observing=True))

    def _after_observing(self, profiles: Sequence[RankProfile]) -> Phase:
        self._rank.observations = profiles
        return Resting(PhaseName.OBSERVED)

    def _profile(self) -> Phase:
        return Profiling(self._rank, self._after_profiling)

    def _after_profiling(self, profiles: Sequence[RankProfile]) -> Phase:
        self._rank.profiles = profiles
        self._rank.save()
        return self._plan()

    def _plan_if_true(self) -> Phase:
        """A profile is used if the time of an iteration at the original clocks agrees with it."""
        rank = self._rank
        job, works = rank.known_job(), rank.known_baseline().work_seconds
        for pipeline, (schedule, seconds) in enumerate(zip(job.schedules, works, strict=True)):
            expected_seconds = highest_clocks_seconds(pipeline_profile(job, rank.profiles, pipeline), schedule)
            if not _LEAST_AGREEMENT * expected_seconds <= seconds <= _MOST_AGREEMENT * expected_seconds:
                _logger.warning(
                    "the profile no longer fits and is measured again: an iteration takes %.4g s at the original "
                    "clocks, and %.4g s by the profile",
                    seconds,
                    expected_seconds,
                )
                rank.profiles = ()
                return self._profile()
        return self._plan()

    def _plan(self) -> Phase:
        self._patience = 0
        self._task = task = PlanningTask(self._rank, self._time_budget_factor)
        task.begin([None] * self._rank.known_job().pipelines)
        return Planning(self._rank, task, self._replay)

    def _deploy_file(self, path: str) -> Phase:
        rank = self._rank
        job, baseline = rank.known_job(), rank.known_baseline()
        work_seconds = max(baseline.work_seconds)
        tail_seconds = baseline.step_seconds - work_seconds
        allowed_seconds = rank.allowed_step_seconds - tail_seconds

        def read() -> dict[str, Any]:
            deployment = read_deployment(path, job, tail_seconds)
            check_time(path, deployment, work_seconds, allowed_seconds)
            return deployment.to_json()

        told = rank.exchange.decide(read, PhaseName.PLANNING)
        return self._replay([Deployment.from_json(told)] * job.pipelines)

    def _replay(self, deployments: Sequence[Deployment]) -> Phase:
        return Replaying(self._rank, deployments, self._task, self._after_change, self._after_delay)

    def _after_change(self) -> Phase:
        _logger.info("the steps no longer match the plan (for example, more microbatches); planning again")
        self._rank.set_clock(None)
        return WarmingUp(self._rank, 1, self._after_introduction)

    def _after_delay(self, replaying: Replaying) -> Phase:
        """Is the plan too slow, or the machine? Iterations at the original clocks show which."""
        if replaying.good_windows > 0:
            self._patience = _PATIENCE
        if replaying.good_windows >= _FORGIVING_WINDOWS:
            self._back_offs, self._time_budget_factor = 0, 1.0
        return MeasuringBaseline(self._rank, partial(self._judge_delay, replaying))

    def _judge_delay(self, replaying: Replaying) -> Phase:
        rank, measured = self._rank, replaying.measured
        assert measured is not None
        allowed_seconds = rank.allowed_step_seconds
        is_slow = measured.step_seconds > (1 + rank.settings.tolerance_fraction) * allowed_seconds
        if is_slow and self._patience > 0:  # a transient delay: the plan used to be fast enough
            self._patience -= 1
            return self._replay(replaying.deployments) if replaying.is_usual else self._plan()
        path = rank.settings.plan_path
        if is_slow:
            self._back_offs += 1
            self._time_budget_factor *= allowed_seconds / measured.step_seconds
            if self._back_offs == _MOST_BACK_OFFS:
                _logger.warning(
                    "%s met the allowed iteration time of %.4g s; the last took %.4g s. Training continues at the "
                    "original clocks; a larger slowdown_factor allows for more",
                    "no plan" if path is None else f"the plan {path} has not",
                    allowed_seconds,
                    measured.step_seconds,
                )
                return Resting(PhaseName.OFF)
        return self._plan_if_true() if path is None else self._deploy_file(path)

    def _known_profiles(self, job: PipelineJob) -> list[RankProfile]:
        """What an earlier run has measured, taken from rank 0."""
        known = self._rank.exchange.decide(lambda: [it.to_json() for it in self._look_up(job)], PhaseName.WARMING_UP)
        return [RankProfile.from_json(it) for it in known]

    def _look_up(self, job: PipelineJob) -> list[RankProfile]:
        try:
            profiles = self._kept_profiles(job)
            check_clocks(job, profiles)
            for pipeline in range(job.pipelines if profiles else 0):
                pipeline_profile(job, profiles, pipeline)
        except UsageError as error:
            _logger.warning("the saved profile cannot be used; measuring again: %s", error)
            return []
        return profiles

    def _kept_profiles(self, job: PipelineJob) -> list[RankProfile]:
        path, kept = self._rank.settings.profile_path, self._rank.kept
        if kept:
            return profiles_from_json(kept, job.fingerprint)
        return [] if path is None else load_profiles(Path(path), job.fingerprint)
