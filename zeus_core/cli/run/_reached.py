"""The findings of `zeus-core run --trainer` in its command: a training, or programs without one."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from zeus_core.environment import SEEN, reached
from zeus_core.installed import FRAMEWORKS, missing_registration, registered_places

_UNREACHED = "Pythons with -I, -E or -S, or without their environment (sudo), are not reached"


class ReachedPrograms:
    """The Python programs below a command.

    Attributes:
        environment: That of the command, whose Pythons follow what is trained in them.
        has_training: At the end, whether a training was found.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._own = Path(tempfile.mkdtemp(prefix="zeus-core-run-"))
        self._file = self._own / SEEN
        self._file.touch()
        self.environment = reached(environment, str(self._own), registered_places(FRAMEWORKS))
        self.has_training: bool = False

    def end(self) -> str | None:
        """Return that no training was found, with what was there in its place; None if one was."""
        try:
            seen = Counter(self._file.read_text().split())
        except OSError:  # somebody cleans up
            return None
        finally:
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


def _programs(count: int) -> str:
    return "a Python program" if count == 1 else f"{count} Python programs"
