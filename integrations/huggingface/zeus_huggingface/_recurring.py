"""Runs of recurring jobs that a Trainer trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from zeus_core.adapters import contained

if TYPE_CHECKING:
    from zeus_core.optimizer.batch_size import RecurringRun

__all__ = ["EvaluationReports"]


class EvaluationReports:
    """Reports the evaluations of a Trainer to a run, and ends the training where the run says so.

    Args:
        run: The run.
    """

    def __init__(self, run: RecurringRun) -> None:
        self._run = run

    @contained
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Say how far the training is, for runs that measure what an epoch costs."""
        if state.epoch and self._run.progress(epoch=state.epoch):
            control.should_training_stop = True

    @contained
    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None,
    ) -> None:
        """Report an evaluation: a collective call. One before the first step says nothing of the training."""
        if not metrics or not state.epoch:
            return
        if self._run.report(epoch=state.epoch, metric=metrics):
            control.should_training_stop = True
            control.should_save = control.should_save or str(getattr(args.save_strategy, "value", "no")) != "no"
