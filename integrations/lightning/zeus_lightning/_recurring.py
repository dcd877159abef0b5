"""Runs of recurring jobs that a trainer trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeus_core._validate import checked_object
from zeus_core.adapters import contained
from zeus_lightning._namespaces import Trainer

if TYPE_CHECKING:
    from zeus_core.optimizer.batch_size import RecurringRun

__all__ = ["ValidationReports"]


class ValidationReports:
    """Reports the validations of a trainer to a run, and ends the training where the run says so.

    Args:
        run: The run.

    Raises:
        UsageError: It is something else.
    """

    def __init__(self, run: RecurringRun) -> None:
        self.run = checked_object("recurring_run", run, "report", "the run of `with job.run() as run:`")

    @contained
    def on_batch_end(self, trainer: Trainer) -> None:
        """Say how far the training is, for runs that measure what an epoch costs."""
        if self.run.progress(epoch=_epochs_of(trainer)):
            trainer.should_stop = True

    @contained
    def on_validation_end(self, trainer: Trainer) -> None:
        """Report a validation within training: a collective call. The metrics are those that early stopping sees."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if self.run.report(epoch=_epochs_of(trainer), metric=dict(trainer.callback_metrics)):
            trainer.should_stop = True


def _epochs_of(trainer: Trainer) -> float:
    """Return the epochs trained so far."""
    batches = trainer.num_training_batches
    if not 0 < batches < float("inf"):
        return float(trainer.current_epoch + 1)
    return float(trainer.current_epoch + trainer.fit_loop.epoch_loop.batch_progress.current.ready / batches)
