"""Values that a recurring job keeps: its declaration, and the record of each run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace

from zeus_core.codec import encode
from zeus_core.documents import Document, parse_json
from zeus_core.errors import UsageError
from zeus_core.jobs.policies import BatchRun
from zeus_core.validate import checked_number

# Costs and epochs of runs compare only while these stay as they are.
_DEFINING = ("target", "objective", "learning_rate_rule")


@dataclass(frozen=True)
class JobDeclaration:
    """The declaration of a job.

    Attributes:
        batch_sizes: The global batch sizes to choose from.
        default: The one of the user.
        target: The metric to reach.
        max_epochs: Epochs after which a run ends short of the target.
        objective: The cost that is minimized, as it prints itself.
        learning_rate_rule: The name of the rule.
        policy: The name of the class of the strategy.
    """

    batch_sizes: tuple[int, ...]
    default: int
    target: Target
    max_epochs: int
    objective: str
    learning_rate_rule: str
    policy: str

    def differences(self, earlier: JobDeclaration, is_defining: bool) -> list[str]:
        """Return what an earlier declaration has in place of this one, in words.

        Args:
            earlier: The earlier one.
            is_defining: Whether to return the settings by which runs compare, or the others.
        """
        names = [name for name in encode(self) if (name in _DEFINING) == is_defining]
        return [
            f"{name.replace('_', ' ')} {_text(getattr(earlier, name))} instead of {_text(getattr(self, name))}"
            for name in names
            if getattr(self, name) != getattr(earlier, name)
        ]


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class Evaluation:
    """The state of a run when its metric was reported.

    Attributes:
        epoch: Epochs trained until then.
        metric: The metric; None if it was not a number.
        seconds: Duration of the run until then.
        energy_joules: Its energy; None if that is not known.
        cost: Its cost; None if that is not known.
    """

    epoch: float
    metric: float | None
    seconds: float
    energy_joules: float | None
    cost: float | None


@dataclass(frozen=True)
class JobRun:
    """One run of a recurring job, as it is kept.

    Attributes:
        uid: Tells it from all others.
        batch_size: The global batch size.
        outcome: See `zeus_core.jobs.policies.BatchRun`; or "measured", of a run that only measured what an epoch
            costs, from its first evaluation to its last.
        reason: Why it has this batch size; after it has ended, why it ended.
        started_at: When it began, in seconds since 1970.
        max_cost: The cost at which it cannot pay off any more; None if it may cost anything.
        gpu_model: The GPU model it runs on; None if that is not known.
        ranks: Processes that train together.
        evaluations: The evaluations so far.
        replaces: The number of an earlier record of the same run, that was taken for dead; None without one.
    """

    uid: str
    batch_size: int
    outcome: str
    reason: str
    started_at: float
    max_cost: float | None = None
    gpu_model: str | None = None
    ranks: int = 1
    evaluations: tuple[Evaluation, ...] = ()
    replaces: int | None = None

    @property
    def last(self) -> Evaluation:
        """The latest evaluation; of nothing, before the first."""
        return self.evaluations[-1] if self.evaluations else Evaluation(0.0, None, 0.0, None, None)

    @property
    def epoch_cost(self) -> float | None:
        """The cost of an epoch; None if it is not known."""
        last, first = self.last, self.evaluations[0] if self.outcome == "measured" and self.evaluations else None
        begin_cost, begin_epoch = ((first.cost or 0.0), first.epoch) if first else (0.0, 0.0)
        if last.cost is None or last.cost <= begin_cost or last.epoch <= begin_epoch:
            return None
        return (last.cost - begin_cost) / (last.epoch - begin_epoch)

    def best_metric(self, target: Target) -> float | None:
        """Return the best value of the metric; None if it has none."""
        best: float | None = None
        for evaluation in self.evaluations:
            if evaluation.metric is not None:
                best = evaluation.metric if best is None else target.best(best, evaluation.metric)
        return best

    def to_batch_run(self) -> BatchRun:
        """Return what a policy sees. A run without a cost, or that only measured, is a failed one."""
        last, outcome = self.last, self.outcome
        if outcome == "measured" or (outcome in {"reached", "stopped"} and not (last.cost and last.epoch)):
            outcome = "failed"
        return BatchRun(
            self.batch_size,
            outcome,  # type: ignore[arg-type]  # checked there
            epochs=last.epoch,
            seconds=last.seconds,
            energy_joules=last.energy_joules or 0.0,
            cost=last.cost or 0.0,
            started_at=self.started_at,
            gpu_model=self.gpu_model,
        )


@dataclass(frozen=True)
class StoredRun:
    """A run with its number in the history of the job.

    Attributes:
        number: Its number, from 0.
        record: The run.
    """

    number: int
    record: JobRun


_RUN = Document("zeus-core run", 1, JobRun, "the run")


def record_to_text(record: JobRun) -> str:
    """Return a record as a JSON text."""
    return json.dumps(_RUN.to_json(record), allow_nan=False)


def record_from_text(text: str) -> JobRun:
    """Return the record in a JSON text.

    Raises:
        UsageError: It is something else, or of another version.
    """
    return _RUN.from_json(parse_json(text))


def ended(record: JobRun, outcome: str, reason: str) -> JobRun:
    """Return the record of a run that has ended."""
    return replace(record, outcome=outcome, reason=reason)


# Words in the names of metrics of which less is better; the names are those of `evaluate` and of the Trainer.
_LOWER_IS_BETTER = {"loss", "perplexity", "ppl", "error", "wer", "cer", "mer", "ter", "mse", "rmse", "mae", "mape"}


@dataclass(frozen=True)
class Target:
    """The value that a metric of evaluations is to reach.

    Attributes:
        metric: The name of the metric, as evaluations report it, such as "eval_accuracy".
        value: Its value at which a training is good enough, and ends.
        is_higher_better: Whether a higher value is better. If None, it is so unless the name holds a word such as
            "loss", "error", "perplexity" or "wer".

    Raises:
        UsageError: An attribute is wrong; the message names it.
    """

    metric: str
    value: float
    is_higher_better: bool | None = None

    def __post_init__(self) -> None:
        """Check the attributes, and choose the better direction by the name."""
        wanted = 'the name of a metric, such as "eval_accuracy"'
        if not self.metric:
            raise UsageError(f"Target.metric is ''; it must be {wanted}")
        value = checked_number("Target.value", self.value, -math.inf, math.inf, "a finite number, such as 0.84")
        object.__setattr__(self, "value", value)
        if self.is_higher_better is None:
            words = set(re.split(r"[^a-z0-9]+", self.metric.lower()))
            object.__setattr__(self, "is_higher_better", words.isdisjoint(_LOWER_IS_BETTER))

    def __str__(self) -> str:
        return f"{self.metric} {'>=' if self.is_higher_better else '<='} {self.value:g}"

    def is_reached(self, value: float) -> bool:
        """Return whether a value of the metric is good enough; one that is not a number is not."""
        return value >= self.value if self.is_higher_better else value <= self.value

    def best(self, first: float, second: float) -> float:
        """Return the better one of two values."""
        return max(first, second) if self.is_higher_better else min(first, second)
