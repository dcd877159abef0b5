"""The findings of `zeus-core run --trainer` in its command: a training, or programs without one."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from zeus_core.environment import SEEN, reached
from zeus_core.errors import UsageError
from zeus_core.installed import FRAMEWORKS, missing_registration, registered_places

_UNREACHED = "Pythons with -I, -E or -S, or without their environment (sudo), are not reached"


class ReachedPrograms:
    """The Python programs below a command.

    Attributes:
        environment: That of the command, whose Pythons follow what is trained in them.
        has_training: At the end, whether a training was found.
        unfinished: At the end, the results of loops that were followed and did not come to theirs, as labelled lines.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._own = Path(tempfile.mkdtemp(prefix="zeus-core-run-"))
        self._file = self._own / SEEN
        self._file.touch()
        self.environment = reached(environment, str(self._own), registered_places(FRAMEWORKS))
        self.has_training: bool = False
        self.unfinished: list[dict[str, str]] = []

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
        if problem := missing_registration(FRAMEWORKS):
            return f"no training was found: {problem}"
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
        return f"no training was found: {found}; {_UNREACHED}; see docs/command-line.md"


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
