"""The findings of `zeus-core run --trainer` in its command: a training, or programs without one."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from zeus_core._launch import SEEN, reached

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_PAGE = "docs/command-line.md"
_MAX_NAMED = 3
_MAX_CHARACTERS = 60  # of the command of a process


class ReachedPrograms:
    """The Python programs below a command.

    Attributes:
        environment: That of the command, whose Pythons follow what is trained in them.
    """

    def __init__(self, environment: dict[str, str], processes: Path = Path("/proc")) -> None:
        self._processes = processes
        descriptor, name = tempfile.mkstemp(prefix="zeus-core-run-")
        os.close(descriptor)
        self._file = Path(name)
        self.environment = {**reached(environment), SEEN: name}
        self._folder = self.environment["PYTHONPATH"].split(os.pathsep)[0]
        self._unreached: dict[str, None] = {}  # the commands, in order

    def look(self, process_id: int) -> None:
        """Look for Python programs below a process that are not reached. They must be there at that moment."""
        for path in _family(process_id, self._processes):
            try:
                program = (path / "exe").readlink().name
                words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                environment = (path / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended, or is another user's
                continue
            paths = [entry[11:].decode(errors="replace") for entry in environment if entry.startswith(b"PYTHONPATH=")]
            is_cleared = not any(self._folder in entry.split(os.pathsep) for entry in paths)
            if _PYTHON.fullmatch(program) and (is_cleared or _ignores_environment(words)):
                self._unreached[shlex.join(words)[:_MAX_CHARACTERS]] = None

    def end(self) -> str | None:
        """Return that no training was found, with what was there in its place; None if one was."""
        try:
            seen = Counter(self._file.read_text().split())
            self._file.unlink()
        except OSError:  # somebody cleans up
            return None
        if seen["training"]:
            return None
        if seen["torch"]:
            found = f"{_programs(seen['torch'])} with torch ran, and no optimizer took a step that can be seen"
        elif seen["python"]:
            found = f"{_programs(seen['python'])} ran, without torch"
        else:
            found = "no Python program was reached"
        if self._unreached:
            named = ", ".join(f"`{command}`" for command in list(self._unreached)[:_MAX_NAMED])
            found += f"; not reached, by -I, -E, -S or for want of its environment: {named}"
        return f"no training was found: {found}; see {_PAGE}"


def _programs(count: int) -> str:
    return "a Python program" if count == 1 else f"{count} Python programs"


def _family(process_id: int, processes: Path) -> Iterator[Path]:
    """Return the folders of a process and all below it, as far as they can be seen."""
    children: dict[int, list[int]] = {}
    for path in processes.iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])  # a name may hold anything
                children.setdefault(parent, []).append(int(path.name))
    family = [process_id]
    for member in family:
        family += children.get(member, ())
        yield processes / str(member)


def _ignores_environment(words: Sequence[str]) -> bool:
    """Return whether the options of a Python have it ignore `PYTHONPATH` or `sitecustomize`."""
    arguments = iter(words[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument.startswith("--") or argument == "-":
            return False
        letters = re.match(r"[^cmWX]*", argument[1:])
        assert letters is not None
        if set(letters[0]) & set("IES"):
            return True
        rest = argument[1 + letters.end() :]
        if rest[:1] in ("c", "m"):
            return False
        if rest in ("W", "X"):
            next(arguments, None)  # its value
    return False
