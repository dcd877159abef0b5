"""The findings of `zeus-core run --trainer` in its command: a training, or programs without one."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from zeus_core._launch import RECORDS, SEEN, reached
from zeus_core.errors import UsageError

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_PAGE = "docs/command-line.md"
_MAX_NAMED = 3
_MAX_CHARACTERS = 60  # of the command of a process


class ReachedPrograms:
    """The Python programs below a command.

    Attributes:
        environment: That of the command, whose Pythons follow what is trained in them.
        has_training: At the end, whether a training was found.
        unfinished: At the end, the results of loops that were followed and did not come to theirs, as labelled lines.
    """

    def __init__(self, environment: dict[str, str], processes: Path = Path("/proc")) -> None:
        self._processes = processes
        self._own = Path(tempfile.mkdtemp(prefix="zeus-core-run-"))
        self._file = self._own / "seen"
        self._file.touch()
        self.environment = {**reached(environment), SEEN: str(self._file), RECORDS: str(self._own)}
        self._folder = self.environment["PYTHONPATH"].split(os.pathsep)[0]
        self._unreached: dict[str, None] = {}  # the commands, in order
        self.has_training: bool = False
        self.unfinished: list[dict[str, str]] = []

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
        except OSError:  # somebody cleans up
            return None
        finally:
            if any(self._own.glob("*/")):
                self.unfinished = _unfinished(self._own)
            shutil.rmtree(self._own, ignore_errors=True)
        self.has_training = seen["training"] > 0
        if self.has_training:
            return None
        if seen["jax"]:
            found = (
                f"{_programs(seen['jax'])} with JAX ran, whose steps nobody reports: --limit 300W sets a power limit, "
                "and TrainingEnergy measures a loop of your own"
            )
        elif seen["torch"]:
            found = f"{_programs(seen['torch'])} with torch ran, and no optimizer took a step that can be seen"
        elif seen["python"]:
            found = f"{_programs(seen['python'])} ran, without torch"
        else:
            found = "no Python program was reached"
        if self._unreached:
            named = ", ".join(f"`{command}`" for command in list(self._unreached)[:_MAX_NAMED])
            found += f"; not reached, by -I, -E, -S or for want of its environment: {named}"
        return f"no training was found: {found}; see {_PAGE}"


def _unfinished(folder: Path) -> list[dict[str, str]]:
    """Return the results of the runs in a folder that had not ended when they were written last."""
    # Imported here, as most commands train nothing, or come to their end.
    from zeus_core.training import TrainingSummary
    from zeus_core.training.account import Account
    from zeus_core.training.record.journal import Journal
    from zeus_core.training.record.run_file import JOURNAL_FOLDER, read_run
    from zeus_core.units import duration_text

    found = []
    for path in sorted(folder.glob(f"*/{JOURNAL_FOLDER}/run.json")):
        try:
            record = read_run(path)
        except UsageError:
            continue
        if record.latest.state != "running":
            continue
        journals = [Journal(each, 0, 1).read(record.run) for each in folder.glob(f"*/{JOURNAL_FOLDER}")]
        latest = [entries[-1] for of_ranks in journals for entries in of_ranks if entries]
        if not latest:  # no whole line was written, as on a disk that is full
            continue
        summary = TrainingSummary(record.latest.step, Account.from_ranks(entry.account for entry in latest))
        ago = duration_text(max(time.time() - min(entry.at_seconds for entry in latest), 0.0))
        names = ", ".join(sorted({device.name for rank in record.latest.ranks for device in rank.devices}))
        ended = f"without its last word, as by a signal or os._exit; this was known {ago} before"
        found.append({"measured on": names, **summary.rows(), "ended": ended})
    return found


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
