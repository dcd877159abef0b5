"""One run of a recurring job: what it trains with, and whether it should go on."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zeus_core.adapters import contained
from zeus_core.jobs._job_records import Evaluation, JobRun, ended
from zeus_core.jobs._run_reporter import RunReporter
from zeus_core.jobs._run_rules import RunRules, cost_of, scaled_rate
from zeus_core.ports import TimeSource
from zeus_core.ports.exchange import Exchange
from zeus_core.training.run_meter import JobGpus, RunMeter, Spent
from zeus_core.units import number_text
from zeus_core.validate import checked_number, shown

_ROUNDING = 1e-9  # epochs are quotients of steps

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BegunRun:
    """A run as it begins.

    Attributes:
        record: Its record.
        number: Its number in the history; None while the storage cannot be reached.
        rules: The rules of the job.
        exchange: The ranks.
        reporter: Tells the storage, on rank 0; None on the others.
        gpus: The GPUs that this process sees.
        time_source: Tells how long it takes.
    """

    record: JobRun
    number: int | None
    rules: RunRules
    exchange: Exchange
    reporter: RunReporter | None
    gpus: JobGpus
    time_source: TimeSource


class RecurringRun:
    """One training of a recurring job, made by `RecurringJob.run`.

    Train with its batch size and learning rate, and report each evaluation. Adapters report those of their framework,
    and end the training: pass the run as `recurring_run`, to `ZeusTrainerCallback`, `ZeusCallback` (Lightning),
    `ZeusAccelerate` or `TrainingEnergy`, which measure its energy too. In a loop of your own

        for epoch in range(job.max_epochs):
            train()
            if run.report(epoch=epoch + 1, metric=evaluate()):
                break

    Attributes:
        batch_size: The global batch size: the samples of an optimizer step, over all ranks and accumulated batches.
        number: The number of the run in the history of the job; None while the storage cannot be reached.
        reason: Why it has this batch size.
        max_cost: The cost at which it cannot pay off any more, in the unit of the objective; None without a bound.

    Raises:
        UsageError: It is made by something else than a job.
    """

    def __init__(self, begun: BegunRun) -> None:
        self.batch_size: int = begun.record.batch_size
        self.number: int | None = begun.number
        self.reason: str = begun.record.reason
        self.max_cost: float | None = begun.record.max_cost
        self._record = begun.record
        self._rules = begun.rules
        self._exchange = begun.exchange
        self._reporter = begun.reporter
        self._gpus = begun.gpus
        self._time_source = begun.time_source
        self._begin = begun.time_source.now()
        self._meter: RunMeter | None = None
        self._other_metrics: set[str] = set()
        self._has_complained = False

    @property
    def outcome(self) -> str:
        """How it stands: "running", "reached", "stopped", "infeasible" or "failed"."""
        return self._record.outcome

    @property
    def should_stop(self) -> bool:
        """Whether the training should end: it has reached its target, or cannot pay off any more."""
        return self.outcome in {"reached", "stopped"}

    @property
    def cost(self) -> float | None:
        """The cost at the latest evaluation, in the unit of the objective; None if it is not known."""
        return self._record.last.cost

    @property
    def batch_size_per_rank(self) -> int:
        """The samples of one rank in an optimizer step."""
        return self.batch_size // self._exchange.size

    def learning_rate(self, base: float) -> float:
        """Return the learning rate at this batch size, by the rule of the job.

        Args:
            base: The learning rate at the default batch size.

        Raises:
            UsageError: `base` is no number above 0, or a rule of your own returned none.
        """
        return scaled_rate(self._rules.learning_rate_rule, base, self.batch_size, self._rules.default)

    def use_meter(self, meter: RunMeter) -> None:
        """Take time and energy of the training from this meter; adapters set theirs."""
        self._meter = meter

    @contained(default=lambda: False)
    def report(
        self,
        *,
        epoch: float,
        metric: float | Mapping[str, Any],
        energy_joules: float | None = None,
        seconds: float | None = None,
    ) -> bool:
        """Report an evaluation, and return whether the training should end. A collective call; does not raise.

        All ranks get the same answer, by what rank 0 reports.

        Args:
            epoch: Epochs trained so far, such as 0.5.
            metric: The value of the metric of the target, or all metrics by name. Metrics without it are passed over.
            energy_joules: Energy of the run so far, over all GPUs; if None, as an adapter measures it.
            seconds: Its duration so far; if None, as an adapter measures it, or since the run began.
        """
        if self.outcome != "running":
            return True
        reported = self._exchange.decide(lambda: self._reported(epoch, metric, energy_joules, seconds))
        if reported is None:
            return False
        spent = self._spent(reported["energy_joules"], reported["seconds"])
        cost = cost_of(self._rules.objective, spent)
        if cost is None:
            self._complain_of_cost(spent)
        evaluation = Evaluation(reported["epoch"], reported["metric"], spent.seconds, spent.energy_joules, cost)
        record = replace(
            self._record,
            evaluations=(*self._record.evaluations, evaluation),
            gpu_model=self._record.gpu_model or spent.gpus.model,  # as it was proposed for, or costs would not compare
        )
        self._record = self._judged(record)
        if self._reporter is not None:
            self._reporter.update(self._record)
        return self.should_stop

    def progress(self, *, epoch: float, energy_joules: float | None = None, seconds: float | None = None) -> bool:
        """Say how far the training is after an optimizer step, and return whether it should end; does not raise.

        Adapters do so. A loop of your own needs it for `RecurringJob.measure_epochs`, whose runs end in mid-epoch and
        for which this is a collective call.

        Args:
            epoch: Epochs trained so far, such as 0.01.
            energy_joules: As in `report`.
            seconds: As in `report`.
        """
        return self.should_stop

    def end(self, error: BaseException | None) -> None:
        """End the run, as `RecurringJob.run` does at the end of its block. Not collective.

        Args:
            error: The error by which the training ended; None if it ended normally.
        """
        if self.outcome == "running":
            self._record = self._ended(error)
        if self._reporter is not None:
            self._reporter.finish(self._record)

    def _reported(
        self, epoch: float, metric: float | Mapping[str, Any], energy_joules: float | None, seconds: float | None
    ) -> dict[str, Any] | None:
        """Return what rank 0 reports, in JSON types; None without the metric."""
        name = self._rules.target.metric
        if isinstance(metric, Mapping):
            self._other_metrics |= {str(other) for other in metric}
            if name not in metric:
                return None
            metric = metric[name]
        wanted = "epochs trained so far, above 0, such as 1 after the first"
        at_least_0 = "a number, at least 0"
        return {
            "epoch": checked_number("epoch", epoch, 0.0, math.inf, wanted, is_open=True),
            "metric": self._number(metric),
            "energy_joules": energy_joules
            if energy_joules is None
            else checked_number("energy_joules", energy_joules, 0.0, math.inf, at_least_0),
            "seconds": seconds if seconds is None else checked_number("seconds", seconds, 0.0, math.inf, at_least_0),
        }

    def _number(self, metric: Any) -> float | None:
        """Return the value of the metric; None, with one warning, if it is not a number."""
        try:
            value = math.nan if isinstance(metric, bool | str) else float(metric)
        except Exception:  # an array, None
            value = math.nan
        if math.isfinite(value):
            return value
        if not self._has_complained:
            self._has_complained = True
            name = self._rules.target.metric
            _logger.warning("%s is %s, which is no number and does not reach the target", name, shown(metric))
        return None

    def _spent(self, energy_joules: float | None, seconds: float | None) -> Spent:
        measured = None if self._meter is None else self._meter.spent()
        if measured is None:
            now = self._exchange.decide(self._time_source.now) - self._begin
            measured = Spent(now, None, self._gpus)
        return measured._replace(
            energy_joules=measured.energy_joules if energy_joules is None else energy_joules,
            seconds=measured.seconds if seconds is None else seconds,
        )

    def _judged(self, record: JobRun) -> JobRun:
        """Return the record with its outcome: a pure function, and so the same on every rank."""
        last, target = record.last, self._rules.target
        if last.metric is not None and target.is_reached(last.metric):
            return ended(record, "reached", f"{target.metric} is {last.metric:g}")
        if last.epoch >= self._rules.max_epochs * (1 - _ROUNDING):
            return ended(record, "stopped", f"{target} was not reached in {last.epoch:g} epochs")
        if record.max_cost is not None and last.cost is not None:
            # Another evaluation is as far away as they were until now. One beyond the bound comes too late.
            ahead = last.cost / len(record.evaluations)
            if last.cost + ahead > record.max_cost * (1 + _ROUNDING):
                return ended(record, "stopped", f"it cannot pay off any more, at a cost of {number_text(last.cost)}")
        return record

    def _ended(self, error: BaseException | None) -> JobRun:
        record, name = self._record, self._rules.target.metric
        if error is not None and is_out_of_memory(error):
            return ended(record, "infeasible", "out of memory")
        if error is not None:
            return ended(record, "failed", f"the training ended by {type(error).__name__}")
        if not record.evaluations:
            others = ", ".join(sorted(self._other_metrics)) or "none"
            _logger.warning("%s was never reported, so that this run says nothing; reported were: %s", name, others)
            return ended(record, "failed", f"{name} was never reported")
        return ended(record, "stopped", f"the training ended short of {self._rules.target}")

    def _complain_of_cost(self, spent: Spent) -> None:
        if self._has_complained:
            return
        self._has_complained = True
        lacks = "energy of the run" if spent.energy_joules is None else "highest power of the GPUs"
        _logger.warning(
            "the %s is not known, and so neither is the cost: the job learns nothing from this run; pass the run to an "
            "adapter that measures, report energy_joules with objective=ZeusCost(max_power_watts=400), or use "
            "objective=Time()",
            lacks,
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is that of a device without memory: `torch.OutOfMemoryError`, and older forms."""
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    )
