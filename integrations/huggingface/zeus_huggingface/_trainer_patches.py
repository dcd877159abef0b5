"""Patches of `Trainer`, for what its own events do not report.

The Trainer fires nothing when training is left by an exception or Ctrl-C, and nothing when an evaluation or a
checkpoint begins; and it shows callbacks a copy of what was logged already. So some methods of `Trainer` are wrapped,
for as long as a callback of this package exists. A Trainer without such a callback behaves as before. Classes derived
from `Trainer` are covered, as they reach these methods through `super`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from zeus_core.adapters import Patches
from zeus_core.adapters.result import show_result
from zeus_core.events import Activity
from zeus_huggingface._energy_log import EnergyLog
from zeus_huggingface._model_card import evaluations_without_energy
from zeus_huggingface._trainer_calls import calls_of

_patched_cards: set[type] = set()
# Of models that write cards themselves, those that trained them last.
_trainers: weakref.WeakKeyDictionary[Any, weakref.ref[Trainer]] = weakref.WeakKeyDictionary()
_callbacks: set[int] = set()  # identities of those that exist
_patches: list[Patches] = []  # of `Trainer`, and of classes derived from it that write model cards of their own


def patch_trainer(callback: TrainerCallback) -> None:
    """Patch `Trainer` until this callback, and all others this was called with, are deleted."""
    weakref.finalize(callback, _release, id(callback)).atexit = False
    _callbacks.add(id(callback))
    if not _patches:
        patches = Patches(Trainer)
        for name, around in _WRAPS.items():
            patches.wrap(name, around)
        _patches.append(patches)


def _release(callback_id: int) -> None:
    _callbacks.discard(callback_id)
    while _patches and not _callbacks:
        _patches.pop().undo()
        _patched_cards.clear()


def _patch_model_card(trainer_class: type) -> None:
    """Patch the class that defines `create_model_card` for a trainer: TRL's trainers have one of their own."""
    owner = next((base for base in trainer_class.__mro__ if "create_model_card" in vars(base)), None)
    _patch_card(owner, "create_model_card", _create_model_card)


def _patch_card_of_model(trainer: Trainer) -> None:
    """Patch the class of a model that writes cards itself when it is saved: those of sentence-transformers do."""
    model: Any = trainer.model
    owner = next((base for base in type(model).__mro__ if "_create_model_card" in vars(base)), None)
    if owner is not None:
        _trainers[model] = weakref.ref(trainer)
        _patch_card(owner, "_create_model_card", _create_card_of_model)


def _patch_card(owner: type | None, method: str, around: Callable[..., Any]) -> None:
    if owner is not None and owner not in _patched_cards:
        _patched_cards.add(owner)
        _patches.append(Patches(owner))
        _patches[-1].wrap(method, around)


def _train(
    train: Callable[..., Any], trainer: Trainer, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
) -> Any:
    callbacks = calls_of(trainer)
    _patch_model_card(type(trainer))
    _patch_card_of_model(trainer)
    is_trial = (args[0] if args else kwargs.get("trial")) is not None
    for calls in callbacks:
        calls.enter_training(trainer, resume_from_checkpoint, is_trial)
    try:
        output = train(trainer, resume_from_checkpoint, *args, **kwargs)
        metrics = getattr(output, "metrics", None)
        if isinstance(metrics, dict):  # a Trainer with a loop of its own may return anything
            for each in _energy_logs(trainer):
                metrics.update(each.energy.summary.values())
        return output
    finally:
        _show([calls.leave_training() for calls in callbacks])


def _inner_training_loop(loop: Callable[..., Any], trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
    """Train with the micro-batch of the first callback that has one."""
    settings = (calls.micro_batch for calls in calls_of(trainer) if not calls.steps_aside)
    setting = next((setting for setting in settings if setting is not None), None)
    if setting is None:
        return loop(trainer, *args, **kwargs)
    from zeus_huggingface.batches.trainer_micro_batch import MicroBatchTraining  # a wing, for those who ask for it

    return MicroBatchTraining(trainer, setting).run(loop, *args, **kwargs)


def _search(search: Callable[..., Any], trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
    """Show one result for all trainings of a search for hyperparameters."""
    callbacks = calls_of(trainer)
    for calls in callbacks:
        calls.enter_search()
    try:
        return search(trainer, *args, **kwargs)
    finally:
        _show([calls.leave_search() for calls in callbacks])


def _show(results: list[dict[str, str]]) -> None:
    """Show the results of all callbacks in one box, the energy first."""
    results.sort(key=lambda rows: "energy" not in rows)
    show_result({label: text for rows in results for label, text in rows.items()})


def _pausing(activity: Activity) -> Callable[..., Any]:
    """Return a wrap for a method in which the Trainer does something other than train."""

    def pause(method: Callable[..., Any], trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as resuming:
            for calls in calls_of(trainer):
                calls.pause(activity)
                resuming.callback(calls.resume)
            return method(trainer, *args, **kwargs)

    return pause


def _log(log: Callable[..., Any], trainer: Trainer, logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
    """Log our values too, and leave `logs` as it would be without them.

    The Trainer logs the very dictionary that an evaluation returns, and that the best checkpoint, the early stop, the
    learning rate and the hyperparameters are chosen by: `default_compute_objective` sums all that is in it.
    """
    own: dict[str, float] = {}
    for calls in calls_of(trainer):
        if calls.log is not None and not calls.steps_aside:
            own.update(calls.log.values(trainer, logs, Activity.EVALUATION in calls.activities))
    own = {name: value for name, value in own.items() if name not in logs}
    if not own:
        return log(trainer, logs, *args, **kwargs)
    shown = {**logs, **own}
    try:
        return log(trainer, shown, *args, **kwargs)
    finally:  # the Trainer adds the epoch, and callbacks may add or remove what they like
        logs.clear()
        logs.update((name, value) for name, value in shown.items() if name not in own)


def _create_model_card(create: Callable[..., Any], trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
    if not calls_of(trainer):
        return create(trainer, *args, **kwargs)
    with evaluations_without_energy(trainer):
        result = create(trainer, *args, **kwargs)
    for each in _energy_logs(trainer):
        each.add_to_model_card(trainer, Path(str(trainer.args.output_dir)))
    return result


def _create_card_of_model(create: Callable[..., Any], model: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    result = create(model, path, *args, **kwargs)
    known = _trainers.get(model)
    trainer = None if known is None else known()
    if trainer is not None:
        for each in _energy_logs(trainer):
            each.add_to_model_card(trainer, Path(path))
    return result


def _energy_logs(trainer: Trainer) -> list[EnergyLog]:
    """Return the logs of the callbacks that measure the energy of a Trainer."""
    return [calls.log for calls in calls_of(trainer) if calls.log is not None and not calls.steps_aside]


_WRAPS: dict[str, Callable[..., Any]] = {
    "train": _train,
    "_inner_training_loop": _inner_training_loop,
    "hyperparameter_search": _search,
    "evaluate": _pausing(Activity.EVALUATION),
    "_evaluate": _pausing(Activity.EVALUATION),  # for trainers with an `evaluate` of their own
    "predict": _pausing(Activity.PREDICTION),
    "_save_checkpoint": _pausing(Activity.CHECKPOINT),
    "_load_best_model": _pausing(Activity.CHECKPOINT),
    "log": _log,
}
