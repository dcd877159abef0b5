"""The environment variables that people set, and what a Python below `zeus-core run --trainer` says to it.

`reached` gives a command the environment in which every Python imports `_start/sitecustomize.py`, which calls
`zeus_core.launch.follow` after the import of a framework. Importing this takes no time, as it happens in programs that
train nothing, too; so it imports nothing of this package.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

VARIABLE = "ZEUS"
"""Environment variable: "1" measures each trainer, "off" turns off all that the command line and variables ask for.

The Pythons below `zeus-core run --trainer` have a folder of it in place of "1". There they note what they do, and loops
that are followed keep their run files while they train.
"""

_NO = ("off", "no", "false", "0")

SAVE = "ZEUS_SAVE"
"""Environment variable: the slowdown within which energy is saved, such as "10%"."""

OBSERVE = "ZEUS_OBSERVE"
"""Environment variable: "1" changes nothing, and predicts what that would save."""

LIMIT, CLOCK = "ZEUS_LIMIT", "ZEUS_CLOCK"
"""Environment variables: a power limit and an SM clock for the whole of a `zeus-core run`."""

TAGS = "ZEUS_TAGS"
"""Environment variable: tags of the run, such as "team=nlp,project=x"."""

FRAMEWORKS = "ZEUS_FRAMEWORKS"
"""Environment variable that `zeus-core run` sets: the function that follows each framework, "jax=module:name,..."."""

SEEN = "seen"
"""The file in that folder in which processes note what they do, a word a line."""


def run_folder() -> str:
    """Return the folder of the `zeus-core run --trainer` above; empty without one. It may be on another machine."""
    value = os.environ.get(VARIABLE, "")
    return value if Path(value).is_absolute() else ""


def is_off(environment: Mapping[str, str]) -> bool:
    """Whether all is turned off, in any word for no: who means that wants nothing changed."""
    return environment.get(VARIABLE, "").strip().lower() in _NO


def observes(environment: Mapping[str, str]) -> bool:
    """Whether nothing is to be changed: by any word but those for no."""
    return environment.get(OBSERVE, "").strip().lower() not in ("", *_NO)


def reached(
    environment: Mapping[str, str], run: str = "1", frameworks: Iterable[tuple[str, str]] = ()
) -> dict[str, str]:
    """Return an environment whose Pythons follow the frameworks that they import.

    Args:
        environment: The environment of this process.
        run: The folder in which they note what they do; "1" for none.
        frameworks: The module of each framework, and the function that follows it, as "module:name".
    """
    folder = str(Path(__file__).absolute().with_name("_start"))
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path != folder]
    # An empty entry is the current folder; an empty variable is none.
    kept = [] if paths == [""] else paths
    followed = {VARIABLE: run, FRAMEWORKS: ",".join(map("=".join, frameworks))}
    return {**environment, **followed, "PYTHONPATH": os.pathsep.join([folder, *kept])}


def note(word: str) -> None:
    """Add a word to the file of the `zeus-core run` above, if there is one."""
    folder = run_folder()
    if not folder:
        return
    try:
        descriptor = os.open(Path(folder) / SEEN, os.O_WRONLY | os.O_APPEND)
    except OSError:  # on another machine, or in a container
        return
    try:
        os.write(descriptor, f"{word}\n".encode())
    finally:
        os.close(descriptor)
