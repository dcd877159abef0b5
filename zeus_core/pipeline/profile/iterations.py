"""Time and energy of whole iterations, as measured, and what a plan saves of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.reading import Reading
from zeus_core.pipeline.profile.pipeline_job import PipelineJob
from zeus_core.pipeline.profile.step_timeline import RecordedStep
from zeus_core.search.comparison import mean_uncertainty
from zeus_core.units import energy_text

_MEDIAN_FACTOR = 1.25  # standard error of the median of normal values over that of their mean


@dataclass(frozen=True)
class WindowReport:
    """Measurements of some steps of one rank.

    Attributes:
        step_seconds: Duration of each step that the device has finished.
        work_seconds: Time from the beginning to the last computation, of each that has one.
        energy_joules: Mean energy of a step; None if that of any was lost.
        uncertainty_joules: How far that can be off, by the scatter of the steps.
    """

    step_seconds: tuple[float, ...]
    work_seconds: tuple[float, ...]
    energy_joules: float | None
    uncertainty_joules: float | None


@dataclass(frozen=True)
class IterationCost:
    """Measured time and energy of an iteration.

    Attributes:
        step_seconds: Median duration, on the slowest rank.
        work_seconds: Median time from the beginning to the last computation, for each pipeline.
        energy_joules: Mean energy of all GPUs, from the beginning to the end of a step; None if it was lost.
        seconds_uncertainty: How far `step_seconds` can be off, by the scatter of the steps; infinite for a single step.
        uncertainty_joules: How far `energy_joules` can be off, by the same scatter.
    """

    step_seconds: float
    work_seconds: tuple[float, ...]
    energy_joules: float | None
    seconds_uncertainty: float = math.inf
    uncertainty_joules: float = math.inf

    @classmethod
    def from_reports(cls, job: PipelineJob, reports: Sequence[WindowReport]) -> IterationCost | None:
        """Combine each rank's report of the same steps; None if some device has not finished any of them."""
        if not all(report.step_seconds and report.work_seconds for report in reports):
            return None
        medians = [median(report.work_seconds) for report in reports]
        energies = [report.energy_joules for report in reports if report.energy_joules is not None]
        slowest = max(reports, key=lambda report: median(report.step_seconds))
        uncertainties = [math.inf if each.uncertainty_joules is None else each.uncertainty_joules for each in reports]
        return cls(
            median(slowest.step_seconds),
            tuple(max(job.of_pipeline(medians, pipeline)) for pipeline in range(job.pipelines)),
            sum(energies) if len(energies) == len(reports) else None,
            _MEDIAN_FACTOR * mean_uncertainty(slowest.step_seconds),
            math.hypot(*uncertainties),
        )

    def tail_seconds(self, pipeline: int) -> float:
        """Return how long the part after the work of a pipeline takes: gradients, the optimizer step, and the like."""
        return self.step_seconds - self.work_seconds[pipeline]

    def allowed_work_seconds(self, slowdown_factor: float) -> list[float]:
        """Return how long the work of each pipeline may take.

        Args:
            slowdown_factor: The longest allowed iteration, as a multiple of this one.
        """
        longest_seconds = slowdown_factor * self.step_seconds
        return [longest_seconds - self.tail_seconds(pipeline) for pipeline in range(len(self.work_seconds))]


class StepWindow:
    """Measures some steps of one rank, without the time between steps.

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
        """Begin to measure a step."""
        self._begin = self._monitor.read(sync_execution=False)

    def add(self, step: RecordedStep) -> None:
        """Add a step that has ended."""
        self._steps.append(step)
        self._joules.append(self._step_joules())

    def report(self) -> WindowReport:
        """Report the steps; the device may still be busy with the last of them."""
        done = [(whole.seconds, step.work_seconds) for step in self._steps if (whole := step.whole) is not None]
        known = [joules for joules in self._joules if joules is not None]
        is_known = len(known) == len(self._joules) > 0
        return WindowReport(
            step_seconds=tuple(seconds for seconds, _ in done),
            work_seconds=tuple(seconds for _, seconds in done if seconds is not None),
            energy_joules=fmean(known) if is_known else None,
            uncertainty_joules=mean_uncertainty(known) if is_known and len(known) > 1 else None,
        )

    def _step_joules(self) -> float | None:
        begin, self._begin = self._begin, None
        if begin is None:
            return None
        (joules,) = self._monitor.between(begin, self._monitor.read(sync_execution=False)).gpu_energy.values()
        return joules


# Comparisons whose mean is taken as the energy of an iteration with the plan: more of them are more certain, and notice
# later that a plan no longer saves.
_RECENT_WINDOWS = 5

# Comparisons after which a saving that is still within its error may be none.
_MIN_WINDOWS = 3

# Error of the measured saving, as a fraction of the predicted one, below which the measurement would show the latter.
_MAX_ERROR_FRACTION = 0.5


@dataclass(frozen=True)
class Saving:
    """Energy saved in an iteration, over all GPUs.

    Attributes:
        joules: The energy; negative if more is used.
        uncertainty_joules: How far it can be off.
    """

    joules: float
    uncertainty_joules: float

    @property
    def is_certain(self) -> bool:
        """Whether energy is saved for certain."""
        return self.joules > self.uncertainty_joules

    @property
    def is_loss(self) -> bool:
        """Whether energy is lost for certain."""
        return self.joules < -self.uncertainty_joules

    def __str__(self) -> str:
        return f"{energy_text(self.joules, self.uncertainty_joules)} per iteration"


class SavingWatch:
    """Compares the energy of iterations with a plan with that at the original clocks.

    Args:
        predicted: The predicted saving of the plan; None if that is unknown.
    """

    def __init__(self, predicted: Saving | None) -> None:
        self._predicted = predicted
        self._measured: deque[IterationCost] = deque(maxlen=_RECENT_WINDOWS)

    def add(self, measured: IterationCost) -> None:
        """Add the iterations of a comparison."""
        if measured.energy_joules is not None:
            self._measured.append(measured)

    def saving(self, baseline: IterationCost) -> Saving | None:
        """Return the measured saving; None before the first comparison, or where energy was lost.

        Args:
            baseline: An iteration at the original clocks.
        """
        energies = [measured.energy_joules for measured in self._measured if measured.energy_joules is not None]
        if baseline.energy_joules is None or not energies:
            return None
        error = math.hypot(*(measured.uncertainty_joules for measured in self._measured)) / len(energies)
        return Saving(baseline.energy_joules - fmean(energies), math.hypot(error, baseline.uncertainty_joules))

    def is_doubtful(self, baseline: IterationCost) -> bool:
        """Return whether the plan costs energy, or whether a measurement that would show its saving shows none."""
        saving = self.saving(baseline)
        if saving is None or saving.is_certain:
            return False
        expected = self._predicted.joules if self._predicted is not None else 0.0
        is_precise = saving.uncertainty_joules < _MAX_ERROR_FRACTION * expected
        return saving.is_loss or (is_precise and len(self._measured) >= _MIN_WINDOWS)
