"""The energy of the whole machine in `zeus-core run --node-power`, by the kernel's ACPI power meter.

Linux shows it as a folder of /sys/class/hwmon named `power_meter`, readable by everyone: `power1_average` is the mean
of the latest interval, in microwatts, and `power1_accuracy` what the firmware states, in percent of the reading
(Documentation/hwmon/acpi_power_meter.rst). Other meters in that tree are those of boards and chips, not of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from zeus_core._sysfs import sysfs_root
from zeus_core.errors import UsageError
from zeus_core.ports import TimeSource
from zeus_core.ports.background import repeatedly
from zeus_core.ports.time_source import MonotonicTime

_PERIOD_SECONDS = 1.0
_OPTION = "--node-power"


class _Sum(NamedTuple):
    """The readings up to the latest one, which lasts until the next."""

    joules: float = 0.0
    begin: float = 0.0
    latest: float = 0.0
    watts: float = 0.0
    readings: int = 0

    def until(self, now: float) -> float:
        return self.joules + self.watts * (now - self.latest)


class NodePower:
    """Reads the meter each second in the background. A reading that fails is left out, and the one before it lasts on.

    Args:
        root: The folder in the place of /sys.
        time_source: The clock.

    Attributes:
        fields: The energy for programs, once it has ended; None if it was not measured.

    Raises:
        UsageError: There is no such meter, or there are several, of which nobody knows whether they add up.
    """

    def __init__(self, root: str | None = None, time_source: TimeSource | None = None) -> None:
        self._time_source = MonotonicTime() if time_source is None else time_source
        self._meter = _only(sorted(Path(sysfs_root() if root is None else root, "class/hwmon").glob("hwmon*")))
        self._sum = _Sum()
        self.fields: dict[str, float | None] | None = None
        self._stop: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Begin to read, for the first time now."""
        self._read()
        self._stop = repeatedly(self._time_source, self._read, _PERIOD_SECONDS)

    def end(self) -> str:
        """Stop reading, and say the energy to people. It waits for nothing."""
        self._stop()
        now, total = self._time_source.now(), self._sum
        if not total.readings:
            return f"The machine's power was not measured: {self._meter}/power1_average cannot be read."
        joules, seconds, accuracy = total.until(now), now - total.begin, _number(self._meter / "power1_accuracy")
        off = None if accuracy is None or accuracy > 100 else joules * (1 - accuracy / 100)
        self.fields = {"joules": joules, "error_joules": off, "seconds": seconds, "readings": total.readings}
        error = "with an error that its firmware does not state"
        if off is not None:
            error = f"\N{PLUS-MINUS SIGN}{off:.1f} by what its firmware states"
        mean = f", {joules / seconds:.1f} W on average" if seconds > 0 else ""
        return (
            f"The whole machine took {joules:.1f} J ({error}){mean}, by {total.readings} readings of its ACPI power "
            "meter. This has the devices above in it, and all else that the meter supplies."
        )

    def _read(self) -> None:
        microwatts, now, total = _number(self._meter / "power1_average"), self._time_source.now(), self._sum
        if microwatts is not None:
            begin = total.begin if total.readings else now
            self._sum = _Sum(
                total.until(now) if total.readings else 0.0, begin, now, microwatts / 1e6, total.readings + 1
            )


def _only(folders: Sequence[Path]) -> Path:
    names = {folder: _text(folder / "name") or "" for folder in folders}
    meters = [folder for folder, name in names.items() if name == "power_meter"]
    if len(meters) != 1:
        there = ", ".join(f"{folder.name} ({name})" for folder, name in names.items()) or "nothing"
        raise UsageError(
            f"{_OPTION} needs the one ACPI power meter of the machine, a `power_meter` in /sys/class/hwmon (module "
            f"acpi_power_meter); there is {there}. Without it the devices alone are measured"
        )
    return meters[0]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _number(path: Path) -> float | None:
    """Return a number of digits, of which the accuracy has a percent sign; None for anything else."""
    text = (_text(path) or "").removesuffix("%")
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < 1e12 else None
