"""The energy of a training that somebody else decides to end, such as a run of a recurring job, by its account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from zeus_core.adapters import contained
from zeus_core.monitor import ZeusMonitor
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls
from zeus_core.training._run_recorder import RunRecorder


@dataclass(frozen=True)
class JobGpus:
    """The GPUs that a run trains on.

    Attributes:
        count: Their number.
        model: The model of the first one; None if it is not known.
        max_power_watts: The highest power limit of one of them; 0 if it is not known.
    """

    count: int = 0
    model: str | None = None
    max_power_watts: float = 0.0


class Spent(NamedTuple):
    """Time and energy of a run so far, over all ranks."""

    seconds: float
    energy_joules: float | None
    """None if some of it is not known."""
    gpus: JobGpus


class RunMeter:
    """Measures the training of a run by its account: all of it, with evaluations and checkpoints.

    Args:
        monitor: Measures the GPUs of this rank.
        recorder: Keeps the account.
    """

    def __init__(self, monitor: ZeusMonitor, recorder: RunRecorder) -> None:
        self._monitor = monitor
        self._recorder = recorder
        self._gpus: JobGpus | None = None

    @contained
    def spent(self) -> Spent | None:
        """Return what was spent so far, or in the latest training; None if there is none, or no GPU to measure.

        A collective call.
        """
        total = self._recorder.spent()
        if total is None:
            return None
        if self._gpus is None:
            self._gpus = self._read_gpus()
        return Spent(total.seconds, total.energy_joules, self._gpus)

    def _read_gpus(self) -> JobGpus:
        gpus = list(self._monitor.gpus.values())  # those of a job are alike
        calls = ParallelCalls()
        ranges = [
            calls.call_one_within(CALL_SECONDS, number, gpu.read_power_limit_range_watts)
            for number, gpu in enumerate(gpus)
        ]
        highest_watts = max((each.highest_watts for each in ranges), default=0.0)
        return JobGpus(self._recorder.ranks.gpu_count, gpus[0].name if gpus else None, highest_watts)


class MeteredRun(Protocol):
    """A run whose training a `TrainingEnergy` measures, such as a `RecurringRun`."""

    def use_meter(self, meter: RunMeter) -> None:
        """Take time and energy of the training from this meter."""
        ...
