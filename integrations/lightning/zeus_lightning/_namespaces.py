"""The `Callback` class of the Lightning that is in use.

Lightning comes under two names, `lightning.pytorch` and `pytorch_lightning`, whose trainers take callbacks of their own
kind. A callback of ours is of the kind of each name that has been imported before it; of both, where none has. To
import the other one just in case would cost 0.1 s only, but the name imported last takes over the messages of both, so
that `logging.getLogger("lightning.pytorch").setLevel(...)` would no longer do what it says.

Importing this raises `ModuleNotFoundError`, with the pip line, where neither is installed, and `ImportError` where they
are too old.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from zeus_core.adapters import require

__all__ = ["Callback", "LightningModule", "Logger", "Trainer"]

# What follows is of either namespace.
Trainer: TypeAlias = Any
LightningModule: TypeAlias = Any
Logger: TypeAlias = Any

# The newer one is the last to be imported.
_NAMESPACES = ("pytorch_lightning", "lightning.pytorch")


def _callback_classes() -> tuple[type, ...]:
    """The `Callback` class of each namespace in use. Raises what keeps all of them from being used."""
    namespaces = [name for name in _NAMESPACES if name in sys.modules] or _NAMESPACES
    classes: list[type] = []
    refusals: list[Exception] = []
    for namespace in namespaces:
        try:
            classes.append(_callback_class(namespace))
        except Exception as error:  # one that is broken must not stand in the way of the other
            refusals.append(error)
    if not classes:
        raise next((error for error in refusals if not isinstance(error, ModuleNotFoundError)), refusals[-1])
    return tuple(classes)


def _callback_class(namespace: str) -> type:
    require(namespace.partition(".")[0])
    module: Any = importlib.import_module(namespace)
    callback_class: type = module.Callback
    return callback_class


if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    Callback = type("Callback", _callback_classes(), {})
