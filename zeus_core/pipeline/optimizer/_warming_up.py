"""Warming up: steps pass, and the ranks send each other their facts and permissions."""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial

from zeus_core.device import Gpu
from zeus_core.device.gpu import read_driver_version
from zeus_core.errors import DeviceError, UsageError
from zeus_core.pipeline.optimizer._stage import RankContext, Stage
from zeus_core.pipeline.optimizer.frequency_phases import Introduced, Phase
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.pipeline_job import GpuFacts, PipelineJob, RankInformation
from zeus_core.pipeline.profile.profile_store import kept_profile
from zeus_core.pipeline.profile.rank_profile import RankProfile
from zeus_core.pipeline.profile.step_timeline import RecordedStep
from zeus_core.process.deadline import CALL_SECONDS, outside_of_hooks
from zeus_core.process.parallel import ParallelCalls

_logger = logging.getLogger(__name__)


class WarmingUp(Stage):
    """Lets steps pass; then exchanges the facts of the ranks.

    Args:
        context: This rank.
        steps: How many steps pass; at least one does.
        profile: The profile that was measured before the steps changed; None without one.
        checkpoint: The profile of a checkpoint, in JSON types; empty without one.
    """

    def __init__(self, context: RankContext, steps: int, profile: JobProfile | None, checkpoint: object) -> None:
        super().__init__(Phase.WARMING_UP)
        self._context = context
        self._steps_left = max(steps, 1)
        self._profile = profile
        self._checkpoint = checkpoint

    def end_step(self, step: RecordedStep) -> Introduced | None:
        """After the last step, exchange the facts, and look for a profile of an earlier run."""
        self._steps_left -= 1
        if self._steps_left > 0:
            return None
        context = self._context
        job = PipelineJob.from_ranks(context.gather(RankInformation, lambda: self._information(step), self.phase))
        if any(job.permission_problems):
            _logger.warning(
                "clocks will not be changed: %s. Training continues at the original clocks; "
                "its instructions are measured once",
                context.exchange.complaint(job.permission_problems),
            )
            return Introduced(job, None)
        if context.settings.plan_path is not None:
            return Introduced(job, None)
        if self._profile is not None and self._profile.job.fingerprint == job.fingerprint:
            return Introduced(job, JobProfile(job, self._profile.ranks))
        return Introduced(job, self._kept_profile(job))

    @outside_of_hooks()  # a first look at the GPU: its calls, quick where nothing is wrong, have a deadline each
    def _information(self, step: RecordedStep) -> RankInformation:
        context, gpu = self._context, self._context.gpu
        if not step.order:
            raise UsageError("a step of this rank reported no computation; report the instructions of every step")
        supported, lowest_mhz = context.setter.clocks_mhz, context.settings.lowest_clock_mhz or 0
        clocks = tuple(clock_mhz for clock_mhz in supported if clock_mhz >= lowest_mhz)
        if len(clocks) < 2 <= len(supported):
            raise UsageError(
                f"lowest_clock_mhz is {lowest_mhz!r}, which leaves only {len(clocks)} clock{'' if clocks else 's'} on "
                f"{gpu.name} (it has {supported[0]} down to {supported[-1]} MHz); choose a value that leaves at least "
                "two"
            )
        return RankInformation(
            pipeline_rank=context.pipeline_rank,
            order=step.order,
            gpu=ParallelCalls().call_one_within(CALL_SECONDS, 0, partial(_read_facts, gpu)),
            counter_update_period_seconds=gpu.energy_counter_period_seconds,
            clocks_mhz=clocks,
            identity=context.identity_now,
            settings=asdict(context.settings),
            permission_problem=context.setter.permission_problem(),
        )

    def _kept_profile(self, job: PipelineJob) -> JobProfile | None:
        """Return the profile of an earlier run, as rank 0 reads it."""

        def ranks_of_kept() -> tuple[RankProfile, ...]:
            profile = kept_profile(job, self._checkpoint, self._context.settings.profile_path)
            return () if profile is None else profile.ranks

        ranks = self._context.decide(tuple[RankProfile, ...], ranks_of_kept, self.phase)
        return JobProfile(job, ranks) if ranks else None


def _read_facts(gpu: Gpu) -> GpuFacts:
    """Read what times and energies depend on; a limit that cannot be read is None."""
    try:
        limit_watts = gpu.read_power_limit_watts()
    except DeviceError:
        limit_watts = None
    return GpuFacts(gpu.uuid, gpu.name, limit_watts, read_driver_version(gpu))
