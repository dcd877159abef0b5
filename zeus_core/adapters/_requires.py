"""Checks that the framework of an integration is installed, and new enough."""

from __future__ import annotations

import importlib.util
import re
from typing import NamedTuple

from zeus_core.installed import install_command
from zeus_core.validate import checked_one_of


class _Requirement(NamedTuple):
    extra: str
    """The extra of this package that installs the framework."""
    floor: str
    """The oldest version that works."""


# By module. The same floors are in pyproject.toml, and a test compares them.
_REQUIREMENTS = {
    "transformers": _Requirement("huggingface", "4.47"),
    "accelerate": _Requirement("huggingface", "1.3"),
    "lightning": _Requirement("lightning", "2.4"),
    "pytorch_lightning": _Requirement("lightning", "2.4"),
    "deepspeed": _Requirement("deepspeed", "0.14.5"),
    "optuna": _Requirement("batch-size", "4.0"),
}


def require(module: str) -> None:
    """Check that a framework is installed, without importing it.

    Args:
        module: Its module, one of those in the table above.

    Raises:
        UsageError: It is not in the table.
        ModuleNotFoundError: It is not installed; the message contains the pip command.
        ImportError: It is too old; the message contains the pip command.
    """
    extra, floor = _REQUIREMENTS[checked_one_of("module", module, _REQUIREMENTS)]
    hint = install_command(extra)
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"{module} is not installed: {hint}", name=module)
    from importlib import metadata

    installed = metadata.version(module)
    if _numbers(installed) < _numbers(floor):
        raise ImportError(f"{module} {installed} is too old; {floor} or newer is needed: {hint}", name=module)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()
