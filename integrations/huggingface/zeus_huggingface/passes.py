"""Telling generation and the passes of a reference model apart from the rest of a training step."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
        self._hooks: list[Any] = []
        reference = getattr(trainer, "ref_model", None)
        if isinstance(reference, torch.nn.Module):
            self._hooks = [
                reference.register_forward_pre_hook(self._begin_reference),
                reference.register_forward_hook(self._end_reference, always_call=True),
            ]
        model: Any = trainer.model
        self._model_type: Any = type(model)
        self._has_generate = callable(getattr(model, "generate", None))
        if self._has_generate:
            # On the class, and for this model only: a copy of the model must not generate with the original.
            self._replaced = vars(self._model_type).get("generate")
            self._model_type.generate = _reporting(self._model_type.generate, model, energy)

    def detach(self) -> None:
        """Leave everything as it was."""
        for hook in self._hooks:
            hook.remove()
        if not self._has_generate:
            return
        if self._replaced is None:
            del self._model_type.generate
        else:
            self._model_type.generate = self._replaced

    def _begin_reference(self, *_: Any) -> None:
        self._energy.on_pass_begin(Activity.REFERENCE)

    def _end_reference(self, *_: Any) -> None:
        self._energy.on_pass_end()


def _reporting(generate: Callable[..., Any], model: torch.nn.Module, energy: TrainingEnergy) -> Callable[..., Any]:
    @functools.wraps(generate)
    def generate_and_report(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is not model:
            return generate(self, *args, **kwargs)
        energy.on_pass_begin(Activity.GENERATION)
        try:
            return generate(self, *args, **kwargs)
        finally:
            energy.on_pass_end()

    return generate_and_report
