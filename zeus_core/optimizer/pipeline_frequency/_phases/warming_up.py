"""Steps pass; then the ranks introduce themselves to each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from zeus_core.device import Gpu
from zeus_core.device._gpu import read_driver_version
from zeus_core.errors import DeviceError, UsageError
from zeus_core.optimizer.pipeline_frequency._phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency._pipeline_job import GpuFacts, PipelineJob, RankInformation, job_of
from zeus_core.optimizer.pipeline_frequency._rank import Rank
from zeus_core.optimizer.pipeline_frequency._timeline import RecordedStep

__all__ = ["WarmingUp"]


class WarmingUp(Phase):
    """Records what the ranks run.

    Args:
        rank: This rank.
        steps: How many steps pass; at least one does.
        follow: Creates the next phase, once the job is known.
    """

    name = PhaseName.WARMING_UP

    def __init__(self, rank: Rank, steps: int, follow: Callable[[PipelineJob], Phase]) -> None:
        self._rank = rank
        self._steps_left = max(steps, 1)
        self._follow = follow

    def end_step(self, step: RecordedStep) -> Phase:
        """After the last of them, introduce this rank to the others."""
        self._steps_left -= 1
        if self._steps_left > 0:
            return self
        told = self._rank.exchange.gather(lambda: self._introduction(step).to_json(), self.name)
        return self._follow(job_of([RankInformation.from_json(it) for it in told]))

    def _introduction(self, step: RecordedStep) -> RankInformation:
        rank = self._rank
        (gpu,) = rank.monitor.gpus.values()
        if not step.order:
            raise UsageError("a step of this rank reported no computation; report the instructions of every step")
        supported, lowest_mhz = rank.setter.clocks_mhz, rank.settings.lowest_clock_mhz or 0
        clocks = tuple(it for it in supported if it >= lowest_mhz)
        if len(clocks) < 2 <= len(supported):
            raise UsageError(
                f"lowest_clock_mhz is {lowest_mhz!r}, which leaves only {len(clocks)} clock{'' if clocks else 's'} on "
                f"{gpu.name} (it has {supported[0]} down to {supported[-1]} MHz); choose a value that leaves at least "
                "two"
            )
        return RankInformation(
            pipeline_rank=rank.pipeline_rank,
            order=step.order,
            gpu=GpuFacts(gpu.uuid, gpu.name, _power_limit_watts(gpu), read_driver_version(gpu)),
            counter_period_seconds=gpu.energy_counter_period_seconds,
            clocks_mhz=clocks,
            identity=rank.identity,
            settings=asdict(rank.settings),
            permission_problem=rank.setter.permission_problem(),
        )


def _power_limit_watts(gpu: Gpu) -> float | None:
    """Times and energies depend on it; None where it cannot be read."""
    try:
        return gpu.read_power_limit_watts()
    except DeviceError:
        return None
