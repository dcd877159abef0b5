"""Importing this module adds a `ZeusTrainerCallback` to every `Trainer` that is made from then on in this process.

For scripts that nobody can edit. A Trainer that has one already gets no other. With `ZEUS_SAVE` in the environment,
such as "10%", the callback saves energy within this slowdown.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from transformers import Trainer

from zeus_core.adapters import Patches

__all__ = ["disable", "enable"]

_logger = logging.getLogger(__name__)

_patches: list[Patches] = []  # at most one, as the class is one for all


def enable() -> None:
    """Wrap the constructor of `Trainer`, and so those of classes derived from it, unless it is wrapped already."""
    if not _patches:
        patches = Patches(Trainer)
        patches.wrap("__init__", _construct)
        patches.wrap("add_callback", _add_callback)
        _patches.append(patches)


def disable() -> None:
    """Restore the constructor. A Trainer made in between keeps its callback."""
    while _patches:
        _patches.pop().undo()


def _construct(constructor: Callable[..., None], trainer: Trainer, *args: Any, **kwargs: Any) -> None:
    constructor(trainer, *args, **kwargs)
    callbacks: list[Any] = trainer.callback_handler.callbacks
    try:
        if not any(_is_ours(callback) for callback in callbacks):
            from zeus_huggingface._trainer_energy import ZeusTrainerCallback

            callbacks.append(ZeusTrainerCallback())
    except Exception as error:  # the script has not asked for anything: it must not end by this
        _logger.warning("the energy of this training is not measured: %s", error)


def _add_callback(add: Callable[..., None], trainer: Trainer, callback: Any) -> None:
    if _is_ours(callback):
        from zeus_huggingface._trainer_energy import ZeusTrainerCallback

        trainer.pop_callback(ZeusTrainerCallback)  # the script has one of its own after all
    add(trainer, callback)


def _is_ours(callback: Any) -> bool:
    # Not imported with this module: `import zeus_huggingface` imports transformers, which imports this within it.
    energy = sys.modules.get("zeus_huggingface._trainer_energy")
    return energy is not None and isinstance(callback, energy.ZeusTrainerCallback)


enable()
