"""Checks of the arguments of all optimizers: each error names the argument, its value and what is accepted."""

from __future__ import annotations

import math
import operator
import os
from typing import Any, SupportsFloat, SupportsIndex

from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports import SoloWorld, World

__all__ = ["checked_flag", "checked_monitor", "checked_number", "checked_path", "checked_world", "whole_number"]


def checked_monitor(monitor: ZeusMonitor) -> ZeusMonitor:
    """A monitor that measures at least one GPU; `UsageError` for anything else."""
    if not isinstance(monitor, ZeusMonitor):
        raise UsageError(f"monitor is {monitor!r}; it must be a ZeusMonitor, such as ZeusMonitor(gpu_indices=[0])")
    if not monitor.gpus:
        raise UsageError("monitor measures no GPU; name the GPUs to measure, such as ZeusMonitor(gpu_indices=[0])")
    return monitor


def checked_world(world: World | None) -> World:
    """The ranks, or this process alone for None; `UsageError` for anything else, such as the class of a world."""
    if world is not None and (isinstance(world, type) or not callable(getattr(world, "gather", None))):
        raise UsageError(f"world is {world!r}; it must be a World object, such as zeus_core.pytorch.torch_world()")
    return SoloWorld() if world is None else world


def whole_number(argument: str, value: SupportsIndex, least: int) -> int:
    """An argument that counts something, as an int; integers of numpy are accepted too.

    Raises:
        UsageError: It is not a whole number, or below its minimum.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise UsageError(f"{argument} is {value!r}; it must be a whole number, at least {least}")
    return number


def checked_number(argument: str, value: SupportsFloat, least: float, most: float, wanted: str) -> float:
    """A number within its range, as a float; numbers of numpy are accepted too.

    Raises:
        UsageError: It is not a number, or out of its range.
    """
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number <= most:
        raise UsageError(f"{argument} is {value!r}; it must be {wanted}")
    return number


def checked_flag(argument: str, value: Any) -> bool:
    """True or False; `UsageError` for anything else."""
    if not isinstance(value, bool):
        raise UsageError(f"{argument} is {value!r}; it must be true or false")
    return value


def checked_path(argument: str, value: str | os.PathLike[str]) -> str:
    """The path of a file, as text; `UsageError` for anything else."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise UsageError(f"{argument} is {value!r}; it must be the path of a file, such as plan.json")
    return path
