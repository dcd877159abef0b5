"""Measures trainings in programs that do not ask for it: below `zeus-core run --trainer`, and with ZEUS=1 in Lightning.

`_start/sitecustomize.py` calls `follow` after the import of a framework, and Lightning and Fabric call the functions at
the end, by the entry points of this package, wherever a trainer is made. Importing this takes no time: it happens in
programs that train nothing, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from zeus_core.environment import FRAMEWORKS, VARIABLE, note, run_folder
from zeus_core.installed import imported


def is_on() -> bool:
    """Whether trainers of this process are measured that do not ask for it, nor does `zeus-core run`."""
    if os.environ.get(VARIABLE) == "1" or run_folder():
        return True
    from zeus_core.ports.site_defaults import site_saves

    return site_saves(os.environ)


def follow(framework: str) -> None:
    """Measure what is trained with a framework that was just imported, by the function that the command has named.

    The command looks them up in its own Python (`zeus_core.installed`): this one may not list what is installed.

    Args:
        framework: Its module.
    """
    note(framework)
    for pair in os.environ.get(FRAMEWORKS, "").split(","):
        name, _, place = pair.partition("=")
        if name == framework:
            try:
                imported(place)()
            except (Exception, SystemExit) as error:
                _complain(f"{type(error).__name__}: {error}", f" by {place}")


def only_note() -> None:
    """Follow a framework that reports no steps, such as JAX: the note that it was imported is all."""


def lightning_callbacks() -> list[Any]:
    """Return the callback for a trainer of Lightning, which calls this by an entry point; none unless enabled."""

    def make() -> Any:
        from zeus_lightning import ZeusCallback

        return ZeusCallback()

    return _uninvited(make)


def fabric_callbacks() -> list[Any]:
    """Return the callback for a `Fabric`, which calls this by an entry point; none unless enabled."""

    def make() -> Any:
        from zeus_core.pytorch import FabricCallback

        return FabricCallback()

    return _uninvited(make)


def _uninvited(make: Callable[[], Any]) -> list[Any]:
    if not is_on():
        return []
    try:
        callback = make()
    except Exception as error:
        _complain(f"{type(error).__name__}: {error}")
        return []
    callback.is_uninvited = True  # the script may have one of its own
    return [callback]


def _complain(problem: str, by: str = "") -> None:
    try:
        sys.stderr.write(f"zeus-core: trainings of this process ({sys.executable}) are not measured{by}: {problem}\n")
    except Exception:  # nobody is there to read it
        return
