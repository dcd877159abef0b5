"""Importing this module enables Perseus on every engine whose configuration has the block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zeus_core.adapters import Patches, require
from zeus_deepspeed import attach

__all__ = ["disable", "enable"]

_wraps: list[Patches] = []


def enable() -> None:
    """Wrap the constructors of DeepSpeed's engines, unless they are wrapped already.

    Raises:
        ImportError: DeepSpeed is missing or too old; the message contains the pip command.
    """
    require("deepspeed")
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.pipe.engine import PipelineEngine

    if _wraps:
        return

    def construct(constructor: Callable[..., None], engine: Any, *args: Any, **kwargs: Any) -> None:
        constructor(engine, *args, **kwargs)
        attach(engine)

    def construct_plain(constructor: Callable[..., None], engine: Any, *args: Any, **kwargs: Any) -> None:
        is_base_call = isinstance(engine, PipelineEngine)  # its own constructor continues from here
        constructor(engine, *args, **kwargs)
        if not is_base_call:
            attach(engine)

    for engine_class, around in ((PipelineEngine, construct), (DeepSpeedEngine, construct_plain)):
        wraps = Patches(engine_class)
        wraps.wrap("__init__", around)
        _wraps.append(wraps)


def disable() -> None:
    """Restore the constructors. Engines created in between keep Perseus."""
    for wraps in _wraps:
        wraps.undo()
    _wraps.clear()


enable()
