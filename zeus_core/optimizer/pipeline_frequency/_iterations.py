"""Time and energy of whole iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from zeus_core.monitor import Reading, ZeusMonitor
from zeus_core.optimizer.pipeline_frequency._pipeline_job import PipelineJob
from zeus_core.optimizer.pipeline_frequency._timeline import RecordedStep

__all__ = ["Iteration", "StepWindow", "iteration_of"]


@dataclass(frozen=True)
class Iteration:
    """The measured time and energy of an iteration.

    Attributes:
        step_seconds: Median duration, on the slowest rank.
        work_seconds: Median time from the beginning to the last computation, for each pipeline.
        energy_joules: Mean energy of all GPUs, from the beginning to the end of a step; None if it was lost.
    """

    step_seconds: float
    work_seconds: tuple[float, ...]
    energy_joules: float | None


class StepWindow:
    """Some steps of one rank, and their energy; what happens between steps is not included.

    Args:
        monitor: Measures the GPU of the rank.
    """

    def __init__(self, monitor: ZeusMonitor) -> None:
        self._monitor = monitor
        self._begin: Reading | None = None
        self._steps: list[RecordedStep] = []
        self._joules: list[float | None] = []

    def __len__(self) -> int:
        return len(self._steps)

    def begin_step(self) -> None:
        """A step begins."""
        self._begin = self._monitor.read(sync_execution=False)

    def add(self, step: RecordedStep) -> None:
        """A step has ended."""
        self._steps.append(step)
        self._joules.append(self._step_joules())

    def report(self) -> dict[str, Any]:
        """What this rank reports of them, in JSON types; the device may still be busy with the last step."""
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
        (joules,) = self._monitor.between(begin, self._monitor.read(sync_execution=False)).gpu_energy.values()
        return joules


def iteration_of(job: PipelineJob, reports: Sequence[Mapping[str, Any]]) -> Iteration | None:
    """The iteration, from each rank's report of the same steps; None if some device has not finished any of them."""
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
