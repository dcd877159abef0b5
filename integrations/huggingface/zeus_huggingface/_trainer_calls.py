"""The calls of a Trainer that are under way, and which of its callbacks works for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import Trainer, TrainerState, TrainingArguments

from zeus_core.adapters import contained
from zeus_core.adapters.result import show_result
from zeus_core.events import RESUME, TRAIN_END, Activity, Pause, TrainBegin, TrainingHooks
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.selection import warn_unless_measured
from zeus_core.pytorch import torch_world
from zeus_core.pytorch.work_facts import facts_of_models
from zeus_core.training import TrainingSummary
from zeus_huggingface._energy_log import EnergyLog
from zeus_huggingface._passes_of_steps import PassHooks

if TYPE_CHECKING:
    from zeus_core.batches import MicroBatchOptimizer

POWER_LIMIT = "power limit"
"""The role of the callback that sets the power limit."""

_NOBODY = TrainingHooks()  # ignores the events

_logger = logging.getLogger(__name__)


class Training(NamedTuple):
    """A call of `Trainer.train`."""

    trainer: Trainer
    resume_from_checkpoint: Any
    is_trial: bool
    """Whether it is one of the trainings of a search for hyperparameters."""
    steps_aside: bool
    """Whether another callback or trainer does the work."""


class TrainerCalls:
    """The calls of `train` that are under way, and whether the callback that holds this works for them.

    Args:
        name: The name of the callback, for messages.
        observer: Receives the events.
        monitor: Measures for the observer.
        roles: Tasks that only one callback of a Trainer may do. Callbacks with the most roles come first, then the
            first in the list; the others step aside.
        quiet: Whether no result is shown at the end of training.
        splits_passes: Whether to report the passes within a step too.
        micro_batch: The micro-batch, or the optimizer that chooses it; that of the Trainer if None.
        log: Adds the energy to what the Trainer logs; None if nothing is added.
    """

    def __init__(
        self,
        name: str,
        observer: TrainingHooks,
        monitor: ZeusMonitor,
        roles: frozenset[str],
        *,
        quiet: bool = False,
        splits_passes: bool = False,
        micro_batch: int | MicroBatchOptimizer | None = None,
        log: EnergyLog | None = None,
    ) -> None:
        self._name = name
        self._observer = observer
        self._monitor = monitor
        self._roles = roles
        self._is_quiet = quiet
        self._splits_passes = splits_passes
        self.micro_batch = micro_batch
        self.log = log
        self.samples_per_step = 0
        """The nominal samples of an optimizer step on this rank; 0 before training begins."""
        self.activities: list[Activity] = []
        """The work other than training that is under way, each within the one before."""
        self._trainings: list[Training] = []  # nested calls
        self._has_begun = False
        self._knows_world = False
        self._passes: PassHooks | None = None
        self._search: _HyperparameterSearch | None = None

    @property
    def training(self) -> Training | None:
        """The innermost call of `train`; None of a Trainer with a `train` of its own."""
        return self._trainings[-1] if self._trainings else None

    @property
    def steps_aside(self) -> bool:
        """Whether another callback or trainer does the work."""
        return bool(self._trainings) and self._trainings[-1].steps_aside

    @property
    def observer(self) -> TrainingHooks:
        """Receives the events; one that ignores them while this callback steps aside."""
        return _NOBODY if self.steps_aside else self._observer

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
    def enter_training(self, trainer: Trainer, resume_from_checkpoint: Any, is_trial: bool) -> None:
        """Enter `Trainer.train`, and step aside if another callback or trainer does the work."""
        steps_aside = bool(self._trainings) or _has_a_double(self, trainer)
        self._trainings.append(Training(trainer, resume_from_checkpoint, is_trial, steps_aside))
        if steps_aside:
            _logger.warning("%s does nothing here: another callback or trainer does its work", self._name)
            return
        if self.log is not None and any(POWER_LIMIT in each._roles for each in calls_of(trainer) if each is not self):
            self.log.energy.leave_settings_alone()
        warn_unless_measured(self._monitor.gpus, trainer.args.device)

    @contained(default=dict[str, str])
    def leave_training(self) -> dict[str, str]:
        """Leave `Trainer.train`, normally or by an error. Return the result to show, labelled lines.

        A search shows that of all its trainings at its end. In other processes, as Ray's, those of a search show none.
        """
        training = self._trainings.pop()
        if training.steps_aside:
            return {}
        self._observer.receive(TRAIN_END)  # a Trainer with a loop of its own may have reported nothing
        self._detach_passes()
        rows = self._result(training.trainer.is_world_process_zero())
        if not training.is_trial:
            return rows
        if rows and self._search is not None:
            self._search.add(rows, None if self.log is None else self.log.energy.summary)
        return {}

    def prepare(self, args: TrainingArguments, state: TrainerState) -> None:
        """Meet the other ranks, and state the work of a step: another one after `auto_find_batch_size`."""
        self._meet_ranks()
        samples_per_step = (state.train_batch_size or args.train_batch_size) * args.gradient_accumulation_steps
        if self.samples_per_step not in {0, samples_per_step}:
            self._observer.forget()
        self.samples_per_step = samples_per_step
        self._has_begun = True
        self._use_work(args)

    def begin(self, args: TrainingArguments, state: TrainerState) -> None:
        """Report that training begins, and what is trained."""
        self._detach_passes()
        training = self.training
        if training is not None and self._splits_passes:
            energy = None if self.log is None else self.log.energy
            self._passes = PassHooks(training.trainer, self._observer, energy)
        self._observer.receive(TrainBegin(state.max_steps if state.max_steps > 0 else None, state.global_step))
        if training is not None:
            trainer = training.trainer
            self._observer.on_prepared([trainer.model_wrapped], [trainer.optimizer], args.device)

    def end(self, state: TrainerState) -> None:
        """Report that training has ended. The result of a Trainer with a `train` of its own is shown here."""
        self.observer.receive(TRAIN_END)
        if not self._trainings:
            show_result(self._result(state.is_world_process_zero))

    @contained
    def pause(self, activity: Activity) -> None:
        """Report that an evaluation, a prediction or a checkpoint begins, on all ranks."""
        if not self.steps_aside:
            self._meet_ranks()
        self.activities.append(activity)
        self.observer.receive(Pause(activity, on_all_ranks=True))

    @contained
    def resume(self) -> None:
        """Report its end, normal or by an error."""
        self.activities.pop()
        self.observer.receive(RESUME)

    @contained
    def _use_work(self, args: TrainingArguments) -> None:
        model = self.training.trainer.model if self.training is not None else None
        facts = facts_of_models([] if model is None else [model])
        accumulation = args.gradient_accumulation_steps
        self._observer.use_work({**facts, "samples_per_step": self.samples_per_step, "accumulation": accumulation})

    def _detach_passes(self) -> None:
        """Leave the models as they were."""
        if self._passes is not None:
            self._passes.detach()
            self._passes = None

    def _meet_ranks(self) -> None:
        """Find the ranks, as late as possible, and where all ranks are: a collective call."""
        if not self._knows_world:
            self._knows_world = True
            self._observer.use_world(torch_world())

    def _result(self, is_first_rank: bool) -> dict[str, str]:
        """Return the result of a training that has begun, once."""
        has_begun, self._has_begun = self._has_begun, False
        if not has_begun or not is_first_rank or self._is_quiet:
            return {}
        batch_rows = {} if isinstance(self.micro_batch, int | None) else self.micro_batch.result()
        return {**self._observer.result(), **batch_rows}


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


def calls_of(trainer: Trainer) -> list[TrainerCalls]:
    """Return what the callbacks of this package that a Trainer has hold, in order."""
    held = (getattr(callback, "_calls", None) for callback in trainer.callback_handler.callbacks)
    return [calls for calls in held if isinstance(calls, TrainerCalls)]


def _has_a_double(calls: TrainerCalls, trainer: Trainer) -> bool:
    """Return whether a callback of a Trainer has taken a role of this one."""
    taken: set[str] = set()
    for each in sorted(calls_of(trainer), key=lambda each: -len(each._roles)):
        if each is calls:
            break
        taken |= each._roles
    return not taken.isdisjoint(calls._roles)
