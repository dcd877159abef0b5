"""What `zeus-core run` found out, as text and as a file."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zeus_core._files import write_atomically
from zeus_core.cli._summary import MeasuredDevice, device_to_json, summarize, total_of
from zeus_core.errors import UsageError

__all__ = ["RunRecord", "check_writable", "write_record"]

_FORMAT, _VERSION = "zeus-core run", 1
_LONGEST_COMMAND = 100


@dataclass(frozen=True)
class RunRecord:
    """One run of a command.

    Attributes:
        command: As it was given.
        exit_code: As a shell has it: 128 and the signal's number, if one killed the command.
        signal: Name of the signal that killed it; None if none did.
        start_time: Seconds since 1970.
        seconds: How long it ran.
        is_simulated: Whether GPUs are simulated.
        devices: What was measured.
        notes: What was not, and why.
    """

    command: Sequence[str]
    exit_code: int
    signal: str | None
    start_time: float
    seconds: float
    is_simulated: bool
    devices: Sequence[MeasuredDevice]
    notes: Sequence[str]

    def summary(self) -> str:
        """For people."""
        end = f"killed by {self.signal}" if self.signal else f"exit code {self.exit_code}"
        command = shlex.join(self.command)
        if len(command) > _LONGEST_COMMAND:
            command = command[: _LONGEST_COMMAND - 3] + "..."
        head = f"zeus-core: {command}: {self.seconds:.2f} s, {end}"
        return "\n".join([head, summarize(self.devices, self.seconds, self.notes)]).rstrip()

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            **{name: value for name, value in asdict(self).items() if name not in {"devices", "notes"}},
            "devices": [device_to_json(device, self.seconds) for device in self.devices],
            "totals": asdict(total_of(self.devices, self.seconds)),
            "notes": list(self.notes),
        }


def check_writable(path: Path) -> None:
    """Make sure that `write_record` will work, as far as can be known.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        if _is_special(path):
            path.open("a").close()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UsageError(f"--output is {str(path)!r}, which cannot be written: {error}") from error


def write_record(record: RunRecord, path: Path) -> None:
    """Write the file, completely or not at all; a pipe or a terminal is written to."""
    text = json.dumps(record.to_json(), indent=2) + "\n"
    if _is_special(path):
        path.write_text(text, encoding="utf-8")
        return
    write_atomically(path.resolve(), text)  # a link stays one


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()
