"""The driver as a whole: its state file, the processes that use it, its log of calls."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.nvml_driver.device import NvmlDevice, StateFile
from tests.nvml_driver.library import build_library, open_library
from tests.nvml_driver.physics import nanoseconds, seconds_of_nanoseconds
from tests.nvml_driver.spec import DeviceSpec
from tests.nvml_driver.state import ANY, NONE, LogEntry, State

__all__ = ["Call", "NvmlDriver", "map_state"]


class Call(NamedTuple):
    """One call of an NVML function.

    Attributes:
        nanoseconds: The moment of `time.monotonic_ns()` that a reading is of.
        process_id: The process that called.
        function: Name in pynvml, also for the versioned symbols; `nvmlInitWithFlags` counts as `nvmlInit`.
        device_index: The device; None for calls that concern none.
        argument: The integer it was given: milliwatts, the highest clock, a mode, an index, the first field; else 0.
        code: The nvmlReturn_t it returned.
    """

    nanoseconds: int
    process_id: int
    function: str
    device_index: int | None
    argument: int
    code: int

    @property
    def seconds(self) -> float:
        """The moment of `time.monotonic()`."""
        return seconds_of_nanoseconds(self.nanoseconds)


class NvmlDriver:
    """An NVML driver with devices that a test describes. They live in a file, which all processes share.

    Close it, or use it in a `with` statement, to give this process its own NVML back.

    Args:
        folder: For the state file, and for the library if none is given. One driver per folder.
        devices: In PCI order.
        library: From `build_library`. None: compiled now.
        driver_version: The version the driver reports.

    Raises:
        NoCompilerError: There is no library and no compiler to make it.
    """

    def __init__(
        self,
        folder: Path,
        devices: Sequence[DeviceSpec] = (DeviceSpec(),),
        *,
        library: Path | None = None,
        driver_version: str = "570.86.15",
    ) -> None:
        self.library_path = build_library(folder) if library is None else library
        self.state_path = folder / "nvml-state"
        self.ledger_path = folder / "ledger"
        self._library = open_library(self.library_path)
        self._file = StateFile(self._library, _create_state(self._library, self.state_path))
        self._file.state.driver_version = driver_version.encode()
        if len(devices) > len(self._file.state.devices):
            raise ValueError(f"devices has {len(devices)} entries; {len(self._file.state.devices)} are possible")
        self.devices = [NvmlDevice(self._file, i, spec) for i, spec in enumerate(devices)]
        self._file.state.device_count = len(devices)
        self._found: tuple[ctypes.CDLL | None, bytes, str | None] | None = None
        self._started: list[subprocess.Popen[str]] = []

    def __getitem__(self, index: int) -> NvmlDevice:
        return self.devices[index]

    def __iter__(self) -> Iterator[NvmlDevice]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __enter__(self) -> NvmlDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The processes that use it

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a new process use this driver; add them to its others."""
        folders = [str(self.library_path.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(folders),
            "ZEUS_TEST_NVML_STATE": str(self.state_path),
            "ZEUS_LEDGER_DIR": str(self.ledger_path),  # devices of other tests have the same UUIDs
        }

    def load_in_process(self) -> None:
        """Make pynvml use this driver, in this process and those it forks, until `close`."""
        import pynvml

        if self._found is None:
            ledger = os.environ.get("ZEUS_LEDGER_DIR")
            self._found = (pynvml.nvmlLib, self._library.zeus_test_nvml_used(), ledger)
        os.environ["ZEUS_LEDGER_DIR"] = str(self.ledger_path)
        if self._library.zeus_test_nvml_use(os.fsencode(self.state_path)) != 0:
            raise RuntimeError(f"the NVML driver for tests cannot use {self.state_path}")
        _set_library(self._library)

    def close(self) -> None:
        """End the programs that still run, and give pynvml what it had before.

        Calls still running in other threads end well.
        """
        for process in self._started:
            with process:  # closes its pipes
                process.kill()  # a training whose test has failed would go on, and keep the machine from the others
        if self._found is not None:
            found_library, found_path, found_ledger = self._found
            os.environ.pop("ZEUS_LEDGER_DIR", None)
            if found_ledger is not None:
                os.environ["ZEUS_LEDGER_DIR"] = found_ledger
            self._library.zeus_test_nvml_use(found_path or None)
            _set_library(found_library)
            self._found = None

    def start(self, program: str) -> subprocess.Popen[str]:
        """Start a Python program that uses this driver, with its output piped. It can import what this process can."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(program)],
            env={**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, program: str) -> str:
        """Run such a program to its end and return its output. Raises `RuntimeError` if it fails."""
        process = self.start(program)
        output, errors = process.communicate(timeout=240)
        if process.returncode != 0:
            raise RuntimeError(f"the program ended with code {process.returncode}:\n{errors}")
        return output.strip()

    def forget_sessions(self) -> None:
        """Make every process uninitialised until it calls `nvmlInit` again."""
        with self._file.locked() as state:
            state.epoch += 1

    # Faults

    def fail(self, function: str | None, code: int, times: int | None = None) -> None:
        """Let calls return an NVML error, on any device or none. See `NvmlDevice.fail`."""
        self._file.add_fault(function, ANY, code, times)

    def clear_faults(self) -> None:
        """Forget the faults of `fail`, here and on the devices."""
        with self._file.locked() as state:
            for fault in state.faults:
                fault.remaining = 0

    def set_latency(self, seconds: float, function: str | None = None) -> None:
        """Make a function, or every function, take at least this long."""
        number = self._file.function_number(function)
        count = len(self._file.state.latency_microseconds)
        for i in range(count) if number == ANY else [number]:
            self._file.state.latency_microseconds[i] = round(seconds * 1e6)

    # Its time

    def set_clock(self, seconds: float) -> None:
        """Let it be this moment until the next one: time passes no more by itself.

        The first moment is that of the devices' latest change, by now their beginning or a load. What they draw
        between the uptime of the machine and the time of a test would overflow a counter.
        """
        moment = nanoseconds(seconds)
        if not self._file.state.clock_nanoseconds:
            for device in self.devices:
                device.move_history_to(moment)
        self._file.state.clock_nanoseconds = moment

    # The log

    @property
    def call_count(self) -> int:
        """How many calls there were since the last `clear_calls`."""
        return int(self._file.state.call_count)

    def calls(self, function: str | None = None, *, device_index: int | None = None) -> list[Call]:
        """The calls since the last `clear_calls`, oldest first; of very many, the latest 16384."""
        number = self._file.function_number(function)
        names = self._file.read_function_names()
        with self._file.locked() as state:
            count, kept = state.call_count, len(state.calls)
            entries = [LogEntry.from_buffer_copy(state.calls[i % kept]) for i in range(max(0, count - kept), count)]
        return [
            _read_call(entry, names)
            for entry in entries
            if number in (ANY, entry.function) and device_index in (None, entry.device)
        ]

    def clear_calls(self) -> None:
        """Empty the log."""
        with self._file.locked() as state:
            state.call_count = 0


def map_state(path: Path) -> State:
    """Map the state in a file, which all processes that map it share."""
    with path.open("r+b") as file:
        return State.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(State)))


def _create_state(library: ctypes.CDLL, path: Path) -> State:
    error = library.zeus_test_nvml_create(os.fsencode(path))
    if error != 0:
        raise OSError(error, os.strerror(error), str(path))
    return map_state(path)


def _set_library(library: ctypes.CDLL | None) -> None:
    import pynvml

    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()


def _read_call(entry: LogEntry, names: Sequence[str]) -> Call:
    device_index = None if entry.device == NONE else entry.device
    return Call(entry.nanoseconds, entry.process_id, names[entry.function], device_index, entry.argument, entry.code)
