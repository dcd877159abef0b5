"""Measures generation and the passes of a reference model apart from the rest of a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import Trainer

from zeus_core.adapters import Patches
from zeus_core.events import Activity
from zeus_core.training import TrainingEnergy


class PassHooks:
    """Attached to a trainer, reports each text its model generates, and each pass of its `ref_model`, as TRL has them.

    The accelerator is synchronized at both ends of each. A reference that is the model itself with its adapters
    switched off cannot be told apart.

    Args:
        trainer: Any trainer.
        energy: Receives the reports.
    """

    def __init__(self, trainer: Trainer, energy: TrainingEnergy) -> None:
        self._energy = energy
        self._model: Any = trainer.model
        # On the class, as a patch of the model would be copied with it, and a copy would generate with the original.
        self._patches = Patches(type(self._model))
        if callable(getattr(type(self._model), "generate", None)):
            self._patches.wrap("generate", self._generate)
        reference = getattr(trainer, "ref_model", None)
        self._hooks: list[Any] = []
        if isinstance(reference, torch.nn.Module):
            self._hooks = [
                reference.register_forward_pre_hook(lambda *_: energy.on_pass_begin(Activity.REFERENCE)),
                reference.register_forward_hook(lambda *_: energy.on_pass_end(), always_call=True),
            ]

    def detach(self) -> None:
        """Leave the models as they were."""
        self._patches.undo()
        for hook in self._hooks:
            hook.remove()

    def _generate(self, generate: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        if model is not self._model:
            return generate(model, *args, **kwargs)
        self._energy.on_pass_begin(Activity.GENERATION)
        try:
            return generate(model, *args, **kwargs)
        finally:
            self._energy.on_pass_end()
