"""The record of `zeus-core run`, and its summary."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

from zeus_core.cli.metering import devices_to_json, summarize, total_to_json
from zeus_core.cli.text import make_folder
from zeus_core.errors import UsageError
from zeus_core.files import follow_own_links, is_special
from zeus_core.units import duration_text

if TYPE_CHECKING:
    from zeus_core.cli.run._window_charges import WindowCharges
    from zeus_core.cli.run._window_samples import WindowSamples
    from zeus_core.measurement import Device, Measurement

_MAX_COMMAND_CHARACTERS = 100  # of the summary; the file holds the whole command
_WHOLE = "The total is for the whole command on this machine; the box of a training is for the training alone:"


@dataclass(frozen=True)
class CommandRecord:
    """One run of a command.

    Attributes:
        command: The command as given.
        code: Its exit code, or the negative number of the signal that killed it; None while it runs.
        start_time: Seconds since 1970.
        measurement: How long the command ran, and the energy of the measured devices.
        names: The name of each measured device.
        is_simulated: Whether GPUs are simulated.
        notes: Things that were not measured, and why.
        samples: Energy over time; None where nothing is measured.
        charges: Emissions and cost of the whole run; None where the electricity was not stated, and while it runs.
        settings: The settings held for the whole run, such as "300 W", by "power limit" or "SM clock".
        has_training: Whether a training in it was measured by itself, too.
    """

    command: Sequence[str]
    code: int | None
    start_time: float
    measurement: Measurement
    names: Mapping[Device, str]
    is_simulated: bool
    notes: Sequence[str]
    samples: WindowSamples | None = None
    charges: WindowCharges | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    has_training: bool = False

    @property
    def exit_code(self) -> int | None:
        """The exit code as of a shell: 128 plus the number of the signal, if one killed the command."""
        return self.code if self.code is None or self.code >= 0 else 128 - self.code

    @property
    def signal(self) -> str | None:
        """The name of the signal that killed the command; None if none did."""
        if self.code is None or self.code >= 0:
            return None
        number = -self.code
        return next((known.name for known in Signals if known == number), f"signal {number}")  # of a real-time one

    @property
    def end(self) -> str:
        """How the command ended, in words."""
        return f"killed by {self.signal}" if self.signal else f"exit code {self.exit_code}"

    def summary(self) -> str:
        """Format the record for people."""
        command = shlex.join(self.command)
        if len(command) > _MAX_COMMAND_CHARACTERS:
            command = command[: _MAX_COMMAND_CHARACTERS - 3] + "..."
        head = f"zeus-core: {command}: {duration_text(self.measurement.time)}, {self.end}"
        if self.has_training and self.measurement.devices:
            head += f"\n  {_WHOLE}"
        charges = [] if self.charges is None else self.charges.lines()
        return f"{head}\n{summarize(self.measurement, self.names, self.notes, charges)}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return its own fields in its file, for programs: those beside a run's."""
        return {
            "command": list(self.command),
            "exit_code": self.exit_code,
            "signal": self.signal,
            "start_time": self.start_time,
            "seconds": self.measurement.time,
            "is_simulated": self.is_simulated,
            "devices": devices_to_json(self.measurement, self.names),
            "totals": total_to_json(self.measurement),
            "notes": list(self.notes),
            **({"settings": dict(self.settings)} if self.settings else {}),
        }


def check_writable(path: Path) -> None:
    """Check that the file of a run can be written, before the command runs.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path = follow_own_links(path)
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        if is_special(path):
            path.open("a").close()
        else:
            make_folder(path.parent)
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UsageError(f"--output is {str(path)!r}, which cannot be written: {error}") from error
