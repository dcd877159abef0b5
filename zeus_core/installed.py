"""The installed distributions: the parts that they register with this package, and the command that installs more.

A distribution registers by entry points in its `pyproject.toml`, as this package does for the parts that its core does
not name:

    [project.entry-points."zeus_core.commands"]
    NAME = "package.module"             # a command: a `zeus_core.cli.program.Command`
    [project.entry-points."zeus_core.sections"]
    NAME = "package.module:function"    # a section of the page on a run: see `zeus-core report`
    [project.entry-points."zeus_core.frameworks"]
    MODULE = "package.module:function"  # is called after a program below `zeus-core run --trainer` has imported MODULE
    [project.entry-points."zeus_core.searches"]
    NAME = "package.module:class"       # a value of `activities=`: `zeus_core.optimizer.global_setting.extension`
    [project.entry-points."zeus_core.doctor"]
    measure = "package.module:function"   # what `zeus-core doctor --measure` does
    [project.entry-points."zeus_core.traces"]
    file = "package.module:Class"   # what `trace=` makes: a `zeus_core.training.traced.RunTraced`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS, SECTIONS = "zeus_core.commands", "zeus_core.sections"
FRAMEWORKS, DOCTOR, TRACES = "zeus_core.frameworks", "zeus_core.doctor", "zeus_core.traces"
SEARCHES = "zeus_core.searches"

_logger = logging.getLogger(__name__)


def imported(place: str) -> Any:
    """Import a module, or a name of it: "module" or "module:name"."""
    module, _, name = place.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


def registered_places(group: str) -> list[tuple[str, str]]:
    """Return each name that is registered in a group of entry points, with its "module:name". Imports nothing.

    A name may be registered several times; this package comes first.
    """
    return list(dict.fromkeys((entry.name, entry.value) for entry in _entries(group)))


def registered(group: str, complain: Callable[[str], None], name: str | None = None) -> Iterator[tuple[str, Any]]:
    """Import what is registered in a group of entry points, and yield each name with it. The first of a name counts.

    Args:
        group: The group of entry points.
        complain: Receives a line on each entry point that cannot be imported, which is left out.
        name: Only this one; all if None.
    """
    seen = set()
    for entry in _entries(group):
        if entry.name in seen or name not in (None, entry.name):
            continue
        try:
            made = entry.load()
        except (Exception, SystemExit) as error:  # it is of a stranger: an error of any kind
            owner = entry.dist.name if entry.dist is not None else "somebody"
            complain(f"{type(error).__name__}: {error} ({entry.name!r} of {owner}, which it registers for {group})")
            continue
        seen.add(entry.name)
        yield entry.name, made


def _entries(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, those of this package first. In a clone, they are read in its pyproject.toml.

    So a clone need not be installed, and one that was installed before a change need not be installed again.
    """
    from importlib.metadata import (  # takes 20 ms, which most programs do without
        EntryPoint,
        distributions,
        entry_points,
    )

    found = [EntryPoint(name, value, group) for name, value in _clone_entry_points().get(group, {}).items()]
    try:
        installed = list(entry_points(group=group))
    except Exception:  # the file of one distribution is damaged: the others count
        installed = []
        for distribution in distributions():
            try:
                installed += distribution.entry_points.select(group=group)
            except Exception as error:
                _logger.warning("the entry points of a distribution cannot be read, and are left out: %s", error)
    return found + sorted(installed, key=_is_of_others)


def _is_of_others(entry: EntryPoint) -> bool:
    return entry.dist is None or entry.dist.name != "zeus-core"


@cache
def _clone_entry_points() -> dict[str, dict[str, str]]:
    """Return the entry points in the `pyproject.toml` of the clone that this package runs from; none elsewhere."""
    import tomllib

    try:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return {}
    return dict(project.get("entry-points", {})) if project.get("name") == "zeus-core" else {}


def missing_registration(group: str) -> str:
    """Return what to do where not even this package has registered its own parts; empty if it has."""
    if registered_places(group):
        return ""
    return f"zeus-core is on the path of Python but not installed, so nothing is registered: {install_command()}"


def install_command(extra: str | None = None) -> str:
    """Return the command that installs this package, or an extra of it, from where it came: a clone, a file, an index.

    pip notes where it took a distribution from in its `direct_url.json` (PEP 610), unless that was an index.
    """
    import json
    from importlib import metadata
    from urllib.parse import unquote

    try:
        source = json.loads(metadata.distribution("zeus-core").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:  # it runs from a clone
        source = {"url": Path(__file__).parents[1].as_uri(), "dir_info": {"editable": True}}
    extras, url = f"[{extra}]" if extra else "", source.get("url", "")
    if url.startswith("file://"):
        option = "-e " if source.get("dir_info", {}).get("editable") else ""
        return f"pip install {option}'{unquote(url.removeprefix('file://'))}{extras}'"
    tool = source.get("vcs_info", {}).get("vcs")
    return f"pip install 'zeus-core{extras}{url and ' @ '}{tool + '+' if tool else ''}{url}'"
