"""One power zone: a folder of the powercap tree with an energy counter in it."""

from pathlib import Path

from zeus_core.device.rapl._rapl_counter import WrappingCounter
from zeus_core.device.rapl.powercap import ReadText, read_count, read_file
from zeus_core.errors import DriverFaultError
from zeus_core.process.lock import ProcessLock
from zeus_core.units import joules_from_microjoules


class RaplZone:
    """The energy of one zone since this object was made, counted on across wrap-arounds.

    Wrap-arounds are counted as long as the zone is read more than once in each, which `RaplKeeper` ensures. A counter
    that was reset otherwise, as by reloading intel_rapl, cannot be told from one that wrapped around.

    Several threads may use it. A forked process goes on counting by itself from where its parent was.

    Args:
        folder: Holds `energy_uj` and `max_energy_range_uj`.
        name: The kernel's name of the zone: "package-0", "dram", "psys".
        read_text: Reads a file.

    Raises:
        DeviceError: A file is missing, may not be read or does not hold what it should; the message names it.
    """

    def __init__(self, folder: Path, name: str, read_text: ReadText = read_file) -> None:
        self.name = name
        self._energy_file = folder / "energy_uj"
        self._read_text = read_text
        self._lock = ProcessLock()
        self._max_energy_range_microjoules = _read_range_microjoules(folder / "max_energy_range_uj", read_text)
        self._counter = WrappingCounter(self._max_energy_range_microjoules, self._read_raw_microjoules())

    @property
    def max_energy_range_joules(self) -> float:
        """The energy after which the counter of the kernel wraps around."""
        return joules_from_microjoules(self._max_energy_range_microjoules)

    def read_energy_counter_microjoules(self) -> int:
        """Read the exact total, which never decreases.

        Raises:
            PermissionDeniedError: The right to read the file was taken away.
            DeviceLostError: The file vanished.
            DriverFaultError: The read failed, or the file does not hold a value of this counter.
        """
        with self._lock:  # held while reading: readings must be counted in the order in which they were taken
            return self._counter.advance(self._read_raw_microjoules())

    def read_energy_counter_joules(self) -> float:
        """Read the total in joules. Raises what `read_energy_counter_microjoules` raises."""
        return joules_from_microjoules(self.read_energy_counter_microjoules())

    def _read_raw_microjoules(self) -> int:
        raw_microjoules = read_count(self._energy_file, self._read_text)
        if raw_microjoules > self._max_energy_range_microjoules:
            raise DriverFaultError(
                f"{self._energy_file} holds {raw_microjoules}, more than the range of its counter, "
                f"{self._max_energy_range_microjoules}"
            )
        return raw_microjoules


def _read_range_microjoules(path: Path, read_text: ReadText) -> int:
    range_microjoules = read_count(path, read_text)
    if range_microjoules == 0:
        raise DriverFaultError(f"{path} holds 0, which is not the range of a counter")
    return range_microjoules
