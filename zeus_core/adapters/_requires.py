"""Checks that the framework of an integration is installed, and new enough."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

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


def install_command(extra: str | None = None) -> str:
    """Return the command that installs this package, or an extra of it, from where it came: a clone, a file, an index.

    pip notes where it took a distribution from in its `direct_url.json` (PEP 610), unless that was an index.
    """
    import json
    from importlib import metadata  # takes 18 ms, and most programs need no framework
    from urllib.parse import unquote

    try:
        source = json.loads(metadata.distribution("zeus-core").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:  # it runs from a clone
        source = {"url": Path(__file__).parents[2].as_uri(), "dir_info": {"editable": True}}
    extras, url = f"[{extra}]" if extra else "", source.get("url", "")
    if url.startswith("file://"):
        option = "-e " if source.get("dir_info", {}).get("editable") else ""
        return f"pip install {option}'{unquote(url.removeprefix('file://'))}{extras}'"
    tool = source.get("vcs_info", {}).get("vcs")
    return f"pip install 'zeus-core{extras}{url and ' @ '}{tool + '+' if tool else ''}{url}'"


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
