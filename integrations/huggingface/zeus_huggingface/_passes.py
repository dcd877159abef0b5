"""Telling generation and the passes of a reference model apart from the rest of a training step."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from transformers import Trainer

from zeus_core.events import Activity
from zeus_core.training import TrainingEnergy

__all__ = ["PassHooks"]


class PassHooks:
    """Attached to a trainer, reports each text its model generates, and each pass of its `ref_model`, as TRL has them.

    Both wait for the accelerator at either end. A reference that is the model itself with its adapters switched off
    cannot be told apart.

    Args:
        trainer: Any trainer.
        energy: Is told.
    """

    def __init__(self, trainer: Trainer, energy: TrainingEnergy) -> None:
        self._energy = energy
        self._model: Any = trainer.model
        self._listeners = _listeners_of(type(self._model))
        self._listeners[self._model] = energy
        reference = getattr(trainer, "ref_model", None)
        self._hooks: list[Any] = []
        if isinstance(reference, torch.nn.Module):
            self._hooks = [
                reference.register_forward_pre_hook(self._begin_reference),
                reference.register_forward_hook(self._end_reference, always_call=True),
            ]

    def detach(self) -> None:
        """Report no more."""
        for hook in self._hooks:
            hook.remove()
        self._listeners.pop(self._model, None)

    def _begin_reference(self, *_: Any) -> None:
        self._energy.on_pass_begin(Activity.REFERENCE)

    def _end_reference(self, *_: Any) -> None:
        self._energy.on_pass_end()


_Listeners = MutableMapping[Any, TrainingEnergy]

_LISTENERS = "__told_of_generation__"


def _listeners_of(model_type: Any) -> _Listeners:
    """Who is told when a model of this type generates: nobody ever, if it cannot.

    The type's `generate` is wrapped once and for all. Wrapped on the model, a copy of it would generate with the
    original.
    """
    generate = getattr(model_type, "generate", None)
    if not callable(generate):
        return {}
    if not hasattr(generate, _LISTENERS):
        generate = model_type.generate = _reporting(generate)
    listeners: _Listeners = getattr(generate, _LISTENERS)
    return listeners


def _reporting(generate: Callable[..., Any]) -> Callable[..., Any]:
    listeners: _Listeners = weakref.WeakKeyDictionary()

    @functools.wraps(generate)
    def generate_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
        energy = listeners.get(self)
        if energy is None:
            return generate(self, *args, **kwargs)
        energy.on_pass_begin(Activity.GENERATION)
        try:
            return generate(self, *args, **kwargs)
        finally:
            energy.on_pass_end()

    setattr(generate_and_report, _LISTENERS, listeners)
    return generate_and_report
