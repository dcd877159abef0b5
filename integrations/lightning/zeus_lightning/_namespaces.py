"""The `Callback` class of the Lightning that is in use.

Lightning has two names, `lightning.pytorch` and `pytorch_lightning`, whose trainers take callbacks of their own kind.
Our callback is of the kind of each name that was imported before it, and of both if none was. The other name is not
imported just in case: the name imported last takes over the messages of both, and then
`logging.getLogger("lightning.pytorch").setLevel(...)` has no effect.

Importing this module raises `ModuleNotFoundError`, with the pip command, if neither is installed, and `ImportError` if
they are too old.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from zeus_core.adapters import require

__all__ = ["Callback", "LightningModule", "Logger", "Trainer"]

# These types are of either namespace.
Trainer: TypeAlias = Any
LightningModule: TypeAlias = Any
Logger: TypeAlias = Any

# The newer one is imported last, and takes over the messages.
_NAMESPACES = ("pytorch_lightning", "lightning.pytorch")


def _callback_classes() -> tuple[type, ...]:
    """Return the `Callback` class of each namespace in use; raise if none can be used."""
    namespaces = [name for name in _NAMESPACES if name in sys.modules] or _NAMESPACES
    classes: list[type] = []
    refusals: list[Exception] = []
    for namespace in namespaces:
        try:
            classes.append(_callback_class(namespace))
        except Exception as error:  # the other may work
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
