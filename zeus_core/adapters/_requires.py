"""Whether the framework an integration is for is there, and new enough."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata

__all__ = ["require"]


def require(module: str, floor: str, extra: str, distribution: str | None = None) -> None:
    """Check that a module is installed, without importing it.

    Args:
        module: Its name.
        floor: The oldest version that will do.
        extra: The extra of this package that brings it.
        distribution: The package it comes in, if that is called otherwise.

    Raises:
        ModuleNotFoundError: It is not installed; the message holds the pip line.
        ImportError: It is too old.
    """
    hint = f"pip install 'zeus-core[{extra}]'"
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"{module} is needed here: {hint}", name=module)
    found = metadata.version(distribution or module)
    if _numbers(found) < _numbers(floor):
        raise ImportError(f"{module} {found} is too old, {floor} or newer is needed: {hint}", name=module)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()
