"""The outcome of a training: by its optimizer and its account, for the summary and the file of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from zeus_core.adapters.contained import Overhead
from zeus_core.codec import encode
from zeus_core.events import TrainingOptimizer
from zeus_core.training._summary import TrainingSummary
from zeus_core.training.account import Account
from zeus_core.training.record.run_keeper import Outcome

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity


class _Measured(Protocol):
    """A training, such as `TrainingEnergy`."""

    detected_evaluations: int

    @property
    def overhead(self) -> Overhead: ...

    @property
    def saving_fraction(self) -> float | None: ...


def outcome_of(training: _Measured, optimizer: TrainingOptimizer | None, results: Mapping[str, str]) -> Outcome:
    """Return what the file of the run keeps besides the account.

    Args:
        training: The training.
        optimizer: Its optimizer, if it has one.
        results: The lines of its result for people.
    """
    return Outcome(
        results,
        _search_of(optimizer),
        training.saving_fraction,
        None if optimizer is None else optimizer.saving_uncertainty,
        training.overhead,
        training.detected_evaluations,
    )


def summary_of(
    training: _Measured,
    optimizer: TrainingOptimizer | None,
    electricity: Electricity | None,
    steps: int,
    account: Account,
    remarks: Sequence[str],
    last_log: Mapping[str, float] | None = None,
) -> TrainingSummary:
    """Return the summary of a training.

    Args:
        training: The training.
        optimizer: Its optimizer, if it has one.
        electricity: By which emissions and cost are reported, if they are.
        steps: The optimizer steps that were done.
        account: All time and energy.
        remarks: Remarks on them for people.
        last_log: The rest that no log contained of it.
    """
    return TrainingSummary(
        steps,
        account,
        training.saving_fraction,
        training.overhead.seconds,
        detected_evaluations=training.detected_evaluations,
        saving_uncertainty=None if optimizer is None else optimizer.saving_uncertainty,
        electricity=electricity,
        remarks=tuple(remarks),
        overhead=training.overhead,
        last_log=last_log or {},
    )


def _search_of(optimizer: TrainingOptimizer | None) -> dict[str, Any] | None:
    """Return the latest search of an optimizer, in JSON types; None if it is of another kind, or there is none."""
    if optimizer is None:
        return None
    from zeus_core.optimizer.global_setting.search_optimizer import search_record  # loads what an optimizer needs

    record = search_record(optimizer)
    return None if record is None else encode(record)
