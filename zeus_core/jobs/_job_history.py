"""The history of a job in numbers: the cost of each batch size, and the regret over the runs. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.jobs._job_records import JobRun, StoredRun
from zeus_core.search.comparison import student_quantile


@dataclass(frozen=True)
class SizeSummary:
    """One batch size in the history of a job.

    Attributes:
        batch_size: The batch size.
        runs: Its runs, with those under way.
        reached: Those that reached the target.
        mean_cost: The geometric mean of their costs; None without one.
        low_cost: The lower end of the interval in which the mean lies with 95 %; None if it is not known.
        high_cost: Its upper end.
        mean_epochs: The mean of their epochs; None without one.
        mean_joules: The mean of their energies; None if it is not known.
        note: More to know: that it was stopped, or does not fit into memory.
    """

    batch_size: int
    runs: int
    reached: int
    mean_cost: float | None
    low_cost: float | None
    high_cost: float | None
    mean_epochs: float | None
    mean_joules: float | None
    note: str


@dataclass(frozen=True)
class JobHistory:
    """The runs of a job on one GPU model, that of the latest run: costs compare on one model only.

    Attributes:
        gpu_model: The model; None if it is not known.
        runs: The runs on it, by number.
        elsewhere: Runs on other models.
    """

    gpu_model: str | None
    runs: tuple[StoredRun, ...]
    elsewhere: int

    @classmethod
    def from_runs(cls, runs: Sequence[StoredRun]) -> JobHistory:
        """Return the history of some runs, by number."""
        model = runs[-1].record.gpu_model if runs else None
        own = tuple(run for run in runs if run.record.gpu_model == model)
        return cls(model, own, len(runs) - len(own))

    @property
    def sizes(self) -> list[SizeSummary]:
        """The batch sizes that were tried, the lowest first."""
        sizes = sorted({run.record.batch_size for run in self.runs})
        return [self._summary(size) for size in sizes]

    @property
    def best(self) -> SizeSummary | None:
        """The batch size with the lowest mean cost; None if the target was never reached at a known cost."""
        return min((size for size in self.sizes if size.mean_cost), key=lambda size: size.mean_cost or 0, default=None)

    def regrets(self) -> list[float]:
        """Return the regret after each run: the cost so far beyond that of the best batch size each time.

        A run that did not reach the target adds all its cost. Empty while no cost is known.
        """
        if self.best is None or self.best.mean_cost is None:
            return []
        regrets, total = [], 0.0
        for run in self.runs:
            total += (run.record.last.cost or 0.0) - (self.best.mean_cost if run.record.outcome == "reached" else 0.0)
            regrets.append(total)
        return regrets

    def _records(self, size: int) -> list[JobRun]:
        return [run.record for run in self.runs if run.record.batch_size == size]

    def _logs(self, size: int) -> list[float]:
        """Return the logarithms of the costs of the runs that reached the target."""
        costs = [record.last.cost for record in self._records(size) if record.outcome == "reached"]
        return [math.log(cost) for cost in costs if cost]

    def _summary(self, size: int) -> SizeSummary:
        records = self._records(size)
        reached = [record for record in records if record.outcome == "reached" and record.last.cost]
        logs = self._logs(size)
        mean = statistics.fmean(logs) if logs else None
        half = self._half_width(len(logs))
        joules = [record.last.energy_joules for record in reached if record.last.energy_joules is not None]
        return SizeSummary(
            size,
            sum(record.outcome != "measured" for record in records),
            sum(record.outcome == "reached" for record in records),
            None if mean is None else math.exp(mean),
            None if mean is None or half is None else math.exp(mean - half),
            None if mean is None or half is None else math.exp(mean + half),
            statistics.fmean(record.last.epoch for record in reached) if reached else None,
            statistics.fmean(joules) if joules else None,
            _note(records),
        )

    def _half_width(self, count: int) -> float | None:
        """Return the half-width of the interval of a mean of log costs, whose variance all batch sizes share."""
        groups = [self._logs(size) for size in {run.record.batch_size for run in self.runs}]
        freedom = sum(len(group) - 1 for group in groups if group)
        if freedom < 1 or count == 0:
            return None
        squares = sum((value - statistics.fmean(group)) ** 2 for group in groups for value in group)
        return student_quantile(freedom) * math.sqrt(squares / freedom / count)


def _note(records: Sequence[JobRun]) -> str:
    counts = {
        outcome: sum(record.outcome == outcome for record in records) for outcome in ("stopped", "failed", "running")
    }
    parts = [f"{count} {outcome}" for outcome, count in counts.items() if count]
    if all(record.outcome == "measured" for record in records):
        parts.append("an epoch was measured")
    if any(record.outcome == "infeasible" for record in records):
        parts.append("does not fit into memory")
    return ", ".join(parts)
