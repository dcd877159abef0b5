"""Translates what a Trainer does into the events of an observer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from zeus_core.adapters import contained
from zeus_core.adapters.result import show_result
from zeus_core.events import (
    EPOCH_BEGIN,
    EPOCH_END,
    INTERFERENCE,
    RESUME,
    STEP_BEGIN,
    STEP_END,
    TRAIN_END,
    Activity,
    Event,
    Pause,
    TrainBegin,
    TrainingHooks,
)
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.selection import warn_unless_measured
from zeus_core.pytorch import torch_world
from zeus_core.pytorch.work_facts import facts_of_models
from zeus_core.training import TrainingSummary
from zeus_huggingface._passes_of_steps import PassHooks

if TYPE_CHECKING:
    from zeus_core.batches import MicroBatchOptimizer
    from zeus_core.jobs.recurring_run import RecurringRun

_CallbackClass = TypeVar("_CallbackClass", bound=type[TrainerCallback])

_logger = logging.getLogger(__name__)

_OF_LISTENER = ("on_train_begin", "on_step_end", "on_save", "on_train_end")
_OF_OBSERVER: dict[str, Event] = {
    "on_epoch_begin": EPOCH_BEGIN,
    "on_step_begin": STEP_BEGIN,
    "on_prediction_step": INTERFERENCE,  # a Trainer with an evaluation of its own has not announced it
    "on_epoch_end": EPOCH_END,
}


class Training(NamedTuple):
    """A call of `Trainer.train`."""

    trainer: Trainer
    resume_from_checkpoint: Any
    is_trial: bool = False
    """Whether it is one of the trainings of a search for hyperparameters."""


class _HyperparameterSearch:
    """Adds up the trainings of a search for hyperparameters, whose results are shown as one."""

    def __init__(self) -> None:
        self._trainings = 0
        self._rows: dict[str, str] = {}
        self._summary: TrainingSummary | None = None

    def add(self, rows: dict[str, str], summary: TrainingSummary | None) -> None:
        """Add a training with its result and, if its energy was measured, its summary."""
        self._trainings += 1
        self._rows.update(rows)
        if summary is not None and summary.not_measured is None:
            self._summary = summary if self._summary is None else self._summary + summary

    def result(self) -> dict[str, str]:
        """Return the energy of all trainings, and the latest that was said of the power limit."""
        energy = {} if self._summary is None else self._summary.rows()
        return {"trainings": str(self._trainings), **self._rows, **energy} if self._rows else {}


class Reporter:
    """Reports to an observer, and adds nothing to what the Trainer logs and saves. The methods do not raise.

    Args:
        observer: Receives the events.
        splits_passes: Whether to report the passes within a step too.
    """

    def __init__(self, observer: TrainingHooks, splits_passes: bool = False) -> None:
        self.observer = observer
        self._splits_passes = splits_passes
        self._passes: PassHooks | None = None
        self.activities: list[Activity] = []
        """The work other than training that is under way, each within the one before."""

    @property
    def summary(self) -> TrainingSummary | None:
        """The summary of the latest training; None if its energy is not measured."""
        return None

    def begin(self, training: Training | None, args: TrainingArguments, state: TrainerState) -> None:
        """Report that training begins; `training` is None if the Trainer has a `train` of its own."""
        self.observer.receive(TRAIN_END)
        self._begin(training, state)

    def _begin(self, training: Training | None, state: TrainerState) -> None:
        self.leave()
        if training is not None and self._splits_passes:
            self._passes = PassHooks(training.trainer, self.observer, self.count_generated)
        self.observer.receive(TrainBegin(state.max_steps if state.max_steps > 0 else None, state.global_step))

    def leave_settings_alone(self) -> None:
        """Make no search that nobody but variables asks for: another callback does."""

    def end_step(self, samples: int) -> None:
        """Report that an optimizer step on this many samples has ended."""
        self.observer.receive(STEP_END)

    def pause(self, activity: Activity) -> None:
        """Report that an evaluation, a prediction or a checkpoint begins, on all ranks."""
        self.activities.append(activity)
        self.observer.receive(Pause(activity, on_all_ranks=True))

    def resume(self) -> None:
        """Report its end."""
        self.activities.pop()
        self.observer.receive(RESUME)

    def save(self, args: TrainingArguments, state: TrainerState) -> None:
        """Add to a checkpoint that has just been saved."""
        self.observer.receive(INTERFERENCE)  # a Trainer that saves in its own way has not announced it

    def values_to_log(self, trainer: Trainer, logs: dict[str, float]) -> dict[str, float]:
        """Return the values to add to something that is about to be logged."""
        return {}

    def end(self, args: TrainingArguments) -> None:
        """Prepare for the end of training, on all ranks."""

    def training_metrics(self) -> dict[str, float]:
        """Return the metrics to add to those of the training that has just ended."""
        return {}

    def add_to_model_card(self, trainer: Trainer, folder: Path) -> None:
        """Add to a model card that has just been written to a folder."""

    def count_generated(self, tokens: int) -> None:
        """Count the tokens of text that was generated for training."""

    def leave(self) -> None:
        """Leave the Trainer as it was."""
        if self._passes is not None:
            self._passes.detach()
            self._passes = None


class TrainerListener:
    """Receives the events of a Trainer's callback, and what `patch_trainer` adds to them. A step is an optimizer step.

    Args:
        name: The name of the callback, for messages.
        reporter: Receives the translation.
        monitor: Measures for the observer.
        roles: Tasks that only one callback of a Trainer may do. Callbacks with the most roles come first, then the
            first in the list; the others step aside.
        quiet: Whether no result is shown at the end of training.
        micro_batch: The micro-batch, or the optimizer that chooses it; that of the Trainer if None.
    """

    def __init__(
        self,
        name: str,
        reporter: Reporter,
        monitor: ZeusMonitor,
        roles: frozenset[str],
        quiet: bool = False,
        micro_batch: int | MicroBatchOptimizer | None = None,
    ) -> None:
        self._name = name
        self._own_reporter = reporter
        self.reporter = reporter  # one that does nothing, while this callback steps aside
        self._monitor = monitor
        self._roles = roles
        self._is_quiet = quiet
        self.micro_batch = micro_batch
        self.recurring_run: RecurringRun | None = None
        self._has_begun = False
        self._trainings: list[tuple[Training, Reporter]] = []  # nested calls, with the reporter before each
        self._knows_world = False
        self._samples_per_step: int | None = None
        self._search: _HyperparameterSearch | None = None

    @contained
    def enter_search(self) -> None:
        """Enter `Trainer.hyperparameter_search`."""
        self._search = _HyperparameterSearch()

    @contained(default=dict[str, str])
    def leave_search(self) -> dict[str, str]:
        """Leave it, normally or by an error. Return the result of all its trainings to show, labelled lines."""
        search, self._search = self._search, None
        return {} if search is None else search.result()

    @contained
    def enter_training(self, training: Training) -> None:
        """Enter `Trainer.train`, and step aside if another callback or trainer does the work."""
        self._trainings.append((training, self.reporter))
        if len(self._trainings) > 1 or self._has_a_double(training.trainer):
            self.reporter = Reporter(TrainingHooks())
            _logger.warning("%s does nothing here: another callback or trainer does its work", self._name)
            return
        others = (each for each in listeners_of(training.trainer) if each is not self)
        if any("power limit" in each._roles for each in others):
            self.reporter.leave_settings_alone()
        warn_unless_measured(self._monitor.gpus, training.trainer.args.device)

    @contained(default=dict[str, str])
    def leave_training(self) -> dict[str, str]:
        """Leave `Trainer.train`, normally or by an error. Return the result to show, labelled lines.

        A search shows that of all its trainings at its end. In other processes, as Ray's, those of a search show none.
        """
        reporter = self.reporter
        training, self.reporter = self._trainings.pop()
        reporter.observer.receive(TRAIN_END)  # a Trainer with a `train` of its own may have reported nothing
        reporter.leave()
        rows = self._result_of(reporter, training.trainer.is_world_process_zero())
        if not training.is_trial:
            return rows
        if rows and self._search is not None:
            self._search.add(rows, reporter.summary)
        return {}

    @contained
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Report that training begins, or begins again after `auto_find_batch_size` reduced the batch size."""
        if self.steps_aside:
            return
        self._meet_ranks()
        samples_per_step = (state.train_batch_size or args.train_batch_size) * args.gradient_accumulation_steps
        if self._samples_per_step not in {None, samples_per_step}:
            self.reporter.observer.forget()
        self._samples_per_step = samples_per_step
        self._has_begun = True
        self._use_work(args, samples_per_step)
        self.reporter.begin(self._trainings[-1][0] if self._trainings else None, args, state)
        if self._trainings:
            trainer = self._trainings[-1][0].trainer
            self.reporter.observer.on_prepared([trainer.model_wrapped], [trainer.optimizer], args.device)

    @contained
    def _use_work(self, args: TrainingArguments, samples_per_step: int) -> None:
        model = self._trainings[-1][0].trainer.model if self._trainings else None
        facts = facts_of_models([] if model is None else [model])
        work = {**facts, "samples_per_step": samples_per_step, "accumulation": args.gradient_accumulation_steps}
        self.reporter.observer.use_work(work)

    @contained
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Report that an optimizer step has ended, and do what the observer and a recurring run ask for."""
        self.reporter.end_step(self._samples_per_step or 0)
        if self.reporter.observer.is_end_due:
            control.should_save = True
        run = self.recurring_run
        if run is not None and state.epoch and run.progress(epoch=state.epoch):
            control.should_training_stop = True

    @contained
    def pause(self, activity: Activity) -> None:
        """Report that an evaluation, a prediction or a checkpoint begins."""
        self._meet_ranks()
        self.reporter.pause(activity)

    @contained
    def resume(self) -> None:
        """Report its end, normal or by an error."""
        self.reporter.resume()

    @contained
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Report that a checkpoint was saved."""
        self.reporter.save(args, state)

    @contained
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Report that training has ended. A Trainer with a `train` of its own shows the result here."""
        self.reporter.end(args)
        self.reporter.observer.receive(TRAIN_END)
        if not self._trainings:
            show_result(self._result_of(self.reporter, state.is_world_process_zero))

    def _result_of(self, reporter: Reporter, is_first_rank: bool) -> dict[str, str]:
        if reporter is not self._own_reporter:
            return {}
        has_begun, self._has_begun = self._has_begun, False
        if not has_begun or not is_first_rank or self._is_quiet:
            return {}
        batch_rows = {} if isinstance(self.micro_batch, int | None) else self.micro_batch.result()
        return {**reporter.observer.result(), **batch_rows}

    @property
    def steps_aside(self) -> bool:
        """Whether another callback or trainer does the work."""
        return self.reporter is not self._own_reporter

    def _has_a_double(self, trainer: Trainer) -> bool:
        taken: set[str] = set()
        for listener in sorted(listeners_of(trainer), key=lambda listener: -len(listener._roles)):
            if listener is self:
                break
            taken |= listener._roles
        return not taken.isdisjoint(self._roles)

    def _meet_ranks(self) -> None:
        """Find the ranks, as late as possible, and where all ranks are: a collective call."""
        if not self._knows_world and not self.steps_aside:
            self._knows_world = True
            self.reporter.observer.use_world(torch_world())


def listeners_of(trainer: Trainer) -> list[TrainerListener]:
    """Return the listeners of a Trainer's callbacks, in order."""
    listeners = (getattr(callback, "listener", None) for callback in trainer.callback_handler.callbacks)
    return [listener for listener in listeners if isinstance(listener, TrainerListener)]


def listening(callback_class: _CallbackClass) -> _CallbackClass:
    """Decorate a class of callbacks: their events go to their attribute `listener`."""
    for name in _OF_LISTENER:
        setattr(callback_class, name, _to_listener(name))
    for name, event in _OF_OBSERVER.items():
        setattr(callback_class, name, _to_observer(event))
    return callback_class


def _to_listener(name: str) -> Callable[..., None]:
    def on_event(self: Any, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        getattr(self.listener, name)(args, state, control)

    return on_event


def _to_observer(event: Event) -> Callable[..., None]:
    def on_event(self: Any, *_: Any, **__: Any) -> None:
        self.listener.reporter.observer.receive(event)

    return on_event
