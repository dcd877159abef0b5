"""The part of `zeus-core run --trainer` in the Pythons below it, and their words to it.

`reached` gives a command the environment in which every Python imports `_start/sitecustomize.py`, which calls `follow`
after the import of a framework. Lightning and Fabric look for callbacks by themselves, by the entry points of this
package, and call the functions at the end.

No framework is imported here, and importing this takes no time: it happens in programs that train nothing, too.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

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

SEEN = "seen"
"""The file in that folder in which processes note what they do, a word a line."""


def is_on() -> bool:
    """Whether trainers of this process are measured that do not ask for it, nor does `zeus-core run`."""
    if os.environ.get(VARIABLE) == "1" or run_folder():
        return True
    import importlib

    return bool(importlib.import_module("zeus_core.ports.site_defaults").site_saves(os.environ))


def run_folder() -> str:
    """Return the folder of the `zeus-core run --trainer` above; empty without one. It may be on another machine."""
    value = os.environ.get(VARIABLE, "")
    return value if os.path.isabs(value) else ""  # noqa: PTH117


def is_off(environment: "Mapping[str, str]") -> bool:
    """Whether all is turned off, in any word for no: who means that wants nothing changed."""
    return environment.get(VARIABLE, "").strip().lower() in _NO


def observes(environment: "Mapping[str, str]") -> bool:
    """Whether nothing is to be changed: by any word but those for no."""
    return environment.get(OBSERVE, "").strip().lower() not in ("", *_NO)


def reached(environment: "Mapping[str, str]", run: str = "1") -> dict[str, str]:
    """Return an environment whose Pythons follow the frameworks that they import, with notes in the folder `run`."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_start")  # noqa: PTH100, PTH118, PTH120
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path != folder]
    # An empty entry is the current folder; an empty variable is none.
    kept = [] if paths == [""] else paths
    return {**environment, VARIABLE: run, "PYTHONPATH": os.pathsep.join([folder, *kept])}


def note(word: str) -> None:
    """Add a word to the file of the `zeus-core run` above, if there is one."""
    folder = run_folder()
    if not folder:
        return
    try:
        descriptor = os.open(os.path.join(folder, SEEN), os.O_WRONLY | os.O_APPEND)  # noqa: PTH118
    except OSError:  # on another machine, or in a container
        return
    try:
        os.write(descriptor, f"{word}\n".encode())
    finally:
        os.close(descriptor)


def follow(framework: str) -> None:
    """Measure what is trained with a framework that was just imported.

    Args:
        framework: Its module.
    """
    import importlib

    if framework == "transformers.trainer":
        importlib.import_module("zeus_huggingface.auto")
    elif framework == "ultralytics.utils.callbacks.base":
        importlib.import_module("zeus_core.pytorch").follow_ultralytics()
    elif framework == "jax":
        note("jax")
    else:
        note("torch")
        importlib.import_module("zeus_core.pytorch").follow_optimizers()


def lightning_callbacks() -> "list[Any]":
    """Return the callback for a trainer of Lightning, which calls this by an entry point; none unless enabled."""
    return _callbacks("zeus_lightning", "ZeusCallback")


def fabric_callbacks() -> "list[Any]":
    """Return the callback for a `Fabric`, which calls this by an entry point; none unless enabled."""
    return _callbacks("zeus_core.pytorch", "FabricCallback")


def _callbacks(module: str, name: str) -> "list[Any]":
    if not is_on():
        return []
    import importlib

    try:
        callback = getattr(importlib.import_module(module), name)()
        callback.is_uninvited = True  # the script may have one of its own
        return [callback]
    except Exception as error:
        text = f"zeus-core: trainings of this process ({sys.executable}) are not measured: {type(error).__name__}: "
        try:
            sys.stderr.write(f"{text}{error}\n")
        except Exception:  # nobody is there to read it
            return []
        return []
