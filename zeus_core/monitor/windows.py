"""`ZeusMonitor`: the time and energy between two points of a program."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

from zeus_core.device import Gpu, discover_cpus, discover_gpus
from zeus_core.device.cpu import Cpu, CpuDiscovery
from zeus_core.errors import NoDeviceError, UsageError
from zeus_core.measurement import Device, DeviceEnergy, Measurement
from zeus_core.monitor._instruments import Instruments
from zeus_core.monitor.reading import Reading
from zeus_core.monitor.selection import checked_indices, select_cpus, select_gpus
from zeus_core.ports import TimeSource
from zeus_core.ports.accelerator import Synchronize, synchronize_with
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.process.deadline import waiting_for
from zeus_core.units import rows_html
from zeus_core.validate import checked_path

if TYPE_CHECKING:
    from zeus_core.monitor._log import WindowLog

_logger = logging.getLogger(__name__)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer")


@dataclass
class Window:
    """A window opened with `ZeusMonitor.window`; it holds the measurement once it is closed."""

    name: str
    _measurement: Measurement | None = None

    @property
    def measurement(self) -> Measurement:
        """The time and energy of the window.

        Raises:
            UsageError: The window is still open, or its block raised.
        """
        if self._measurement is None:
            raise UsageError(f"window {self.name!r} has no measurement: read it after the `with` block has ended")
        return self._measurement


class ZeusMonitor:
    """The time and energy of named windows, which may nest and overlap, and lie in several threads.

    GPUs are measured by their energy counters, with two driver calls each at both edges of a window, and in the
    background ten times a second. GPUs without a counter have their power sampled there. CPU packages and their DRAM
    are measured where this process may read their counters. Every energy says how it was obtained and how far it can be
    off; see `DeviceEnergy`. If a device cannot be read, its energy is reported as lost; nothing is raised. Where there
    is no GPU, and none was asked for by its index, CPUs are measured alone, after one warning.

    Args:
        gpu_indices: The GPUs to measure, by the framework's index (after `CUDA_VISIBLE_DEVICES`). If None, all visible
            ones, or this rank's own under a launcher of several ranks. An empty list measures none.
        cpu_indices: The CPU packages to measure. If None, all that can be; the first rank of a node measures them.
        approx_instant_energy: Has no effect, and exists for programs written for the `zeus` package: a window in which
            no energy counter was updated is always estimated from the power, and marked as estimated.
        log_file: Append each finished window to this file; see `WindowLog` for the format.
        sync_execution_with: The framework to wait for at both edges of a window: "torch", "jax" or "cupy".
        precise: Sample the GPUs every 4 ms, to know when their counters are updated. Windows become about twice as
            sure, for 3 to 10 % of a CPU core (1 to 8 GPUs).
        gpus: The machine's GPUs; those of `discover_gpus` if None.
        cpus: The machine's CPU packages; those of `discover_cpus` if None.
        time_source: Source of time; monotonic real time if None.
        synchronize: Waits for the accelerator, in place of `sync_execution_with`.

    Raises:
        NoDeviceError: There is no GPU that was asked for, or no device at all, and `gpu_indices` does not say that no
            GPU is wanted.
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        gpu_indices: Sequence[int] | None = None,
        cpu_indices: Sequence[int] | None = None,
        approx_instant_energy: bool = False,
        log_file: str | Path | None = None,
        sync_execution_with: str = "torch",
        *,
        precise: bool = False,
        gpus: Sequence[Gpu] | None = None,
        cpus: CpuDiscovery | None = None,
        time_source: TimeSource | None = None,
        synchronize: Synchronize | None = None,
    ) -> None:
        gpu_indices = checked_indices("gpu_indices", gpu_indices)
        cpu_indices = checked_indices("cpu_indices", cpu_indices)
        self.gpus: dict[int, Gpu] = {}
        """The measured GPUs by index."""
        self.no_gpu_because: str | None = None
        """Why no GPU is measured, though all were to be; None if some are, or none was wanted."""
        found_gpus: Sequence[Gpu] = ()
        found_cpus = discover_cpus() if cpus is None else cpus
        if gpu_indices is None or len(gpu_indices) > 0:
            try:
                found_gpus = discover_gpus() if gpus is None else gpus
                self.gpus = select_gpus(found_gpus, gpu_indices, os.environ)
            except NoDeviceError as error:
                if gpu_indices is not None or gpus is not None or not found_cpus.cpus or cpu_indices == []:
                    raise
                self.no_gpu_because = str(error)
                _logger.warning("no GPU is measured, and CPUs are: %s", error)
        self.gpu_indices: list[int] = list(self.gpus)
        """Indices of the measured GPUs."""
        uuids = {gpu.uuid for gpu in self.gpus.values()}
        others = {index for index, gpu in enumerate(found_gpus) if gpu.uuid in uuids} - set(self.gpu_indices)
        self._awaited_indices = [*self.gpu_indices, *sorted(others)]  # with the other dies of the measured boards
        self.cpus: dict[int, Cpu] = select_cpus(found_cpus, cpu_indices, os.environ)
        """The measured CPU packages by index."""
        self.cpu_indices: list[int] = list(self.cpus)
        """Indices of the measured CPU packages."""
        self.time_source: TimeSource = time_source or MonotonicTime()
        """The source of time of the windows."""
        self.approx_instant_energy: bool = approx_instant_energy
        if synchronize is None:
            synchronize = synchronize_with(sync_execution_with)
        self._wait = synchronize
        self._log: WindowLog | None = None
        if log_file is not None:
            from zeus_core.monitor._log import WindowLog

            self._log = WindowLog(Path(checked_path("log_file", log_file, "energy.csv")), self.gpu_indices)
        self._instruments = Instruments(self.gpus, self.cpus, self.time_source, precise)
        self.devices: tuple[Device, ...] = self._instruments.devices
        """All measured devices: the keys of `Measurement.devices`, in the same order."""
        self.peak_watts: dict[int, float] = dict(zip(self.gpus, self._instruments.peak_watts, strict=True))
        """The most that each GPU can draw, by index."""
        self._open_windows: dict[str, tuple[float, Callable[[], Reading]]] = {}  # the first by the wall clock
        self._reported_losses: set[tuple[str, str]] = set()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ZeusMonitor cannot be copied or sent to another process; make one there, as ZeusMonitor()")

    def _repr_html_(self) -> str | None:
        return rows_html(
            {f"GPU {index}": gpu.name for index, gpu in self.gpus.items()}
            | {f"CPU {index}": cpu.name for index, cpu in self.cpus.items()}
        )

    def begin_window(self, key: str, sync_execution: bool = True, restart: bool = False) -> None:
        """Open a window.

        Args:
            key: Its name, unique among the open windows.
            sync_execution: Wait for the accelerator first.
            restart: Discard a window of that name if one is open, instead of raising.

        Raises:
            UsageError: A window of that name is open.
        """
        if sync_execution:
            synchronize(self)
        window = time.time(), self._instruments.begin_reading()
        # Each of these operations on the dictionary is atomic: windows may be opened in several threads.
        if restart:
            self._open_windows[key] = window
        elif self._open_windows.setdefault(key, window) is not window:
            raise UsageError(f"window {key!r} is already open; end it first, choose another name, or pass restart=True")
        self._instruments.begin_sampling()

    def end_window(self, key: str, sync_execution: bool = True, cancel: bool = False) -> Measurement:
        """Close a window.

        Args:
            key: The name it was opened with.
            sync_execution: Wait for the accelerator first.
            cancel: Discard the window: the result has no time and 0 J of each device, and nothing is logged.

        Raises:
            UsageError: No window of that name is open.
        """
        window = self._open_windows.pop(key, None)
        if window is None:
            names = ", ".join(sorted(map(repr, self._open_windows))) or "none"
            raise UsageError(f"window {key!r} is not open; open windows: {names}")
        if sync_execution:
            synchronize(self)
        if cancel:
            self._end_sampling()
            return Measurement(0.0, dict.fromkeys(self.devices, DeviceEnergy()))
        start_time, begin = window
        measurement = self._instruments.between(begin(), self._instruments.read_last())
        self._end_sampling()
        for energy in measurement.devices.values():  # cheaper than `measurement.lost_because` for each window
            if energy.lost_because is not None:
                self._report_losses(f"window {key!r}", measurement)
                break
        if self._log is not None:
            self._log.append(start_time, key, measurement)
        return measurement

    def read(self, sync_execution: bool = True) -> Reading:
        """Read all devices at this moment, for `between`. A fault of a device is part of the reading.

        A chain of readings splits time without gaps, at half the driver calls of a chain of windows. GPUs without an
        energy counter are sampled only while a window is open.

        Args:
            sync_execution: Wait for the accelerator first.
        """
        if sync_execution:
            synchronize(self)
        return self._instruments.read()

    def ask(self, question: Callable[[Gpu], _Answer], late: _Answer) -> list[_Answer]:
        """Ask each GPU something, which must not raise. `late` is the answer of one that does not answer in time."""
        return self._instruments.ask(question, late)

    def begin_reading(self, sync_execution: bool = True) -> Callable[[], Reading]:
        """Begin what `read` does. A hook of training goes on meanwhile, and has the reading from what is returned."""
        if sync_execution:
            synchronize(self)
        return self._instruments.begin_reading()

    def between(self, first: Reading, second: Reading) -> Measurement:
        """Compute the time and energy from one reading of this monitor to a later one. Nothing is logged."""
        measurement = self._instruments.between(first, second)
        if measurement.lost_because:
            self._report_losses("the time between two readings", measurement)
        return measurement

    @contextmanager
    def window(self, name: str, sync_execution: bool = True) -> Iterator[Window]:
        """Measure a `with` block. Read `.measurement` of the window that it yields once the block has ended.

        If the block raises, the window is discarded and the exception propagates.
        """
        window = Window(name)
        self.begin_window(name, sync_execution)
        try:
            yield window
        except BaseException:
            self.cancel(name)
            raise
        window._measurement = self.end_window(name, sync_execution)

    def measured(
        self, name: str, report: Callable[[Measurement], object], sync_execution: bool = True
    ) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
        """Decorate a function so that each of its calls is a window of its own.

            @monitor.measured("epoch", report=measurements.append)
            def train_epoch(): ...

        Calls may nest, as those of a recursive function do, and come from several threads.

        Args:
            name: The name of the windows, followed by the number of the call.
            report: Called with the measurement of each call that returns.
            sync_execution: Wait for the accelerator at both edges.
        """
        numbers = itertools.count(1)

        def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
            @functools.wraps(function)
            def measured_function(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
                with self.window(f"{name} #{next(numbers)}", sync_execution) as window:
                    result = function(*args, **kwargs)
                report(window.measurement)
                return result

            return measured_function

        return decorate

    def cancel(self, name: str) -> None:
        """Discard an open window; nothing happens if there is none of that name."""
        self._open_windows.pop(name, None)
        self._end_sampling()

    def restart(self, name: str) -> None:
        """Open a window, and discard one of that name that is open."""
        self.begin_window(name, restart=True)

    def reset_windows(self) -> None:
        """Discard all open windows."""
        for name in list(self._open_windows):
            self.cancel(name)

    def _end_sampling(self) -> None:
        if not self._open_windows:
            self._instruments.end_sampling()
            if self._open_windows:  # by another thread, meanwhile
                self._instruments.begin_sampling()

    def _report_losses(self, span: str, measurement: Measurement) -> None:
        """Warn of each reason once: a device that is gone is gone for every window that follows."""
        for device, reason in set(measurement.lost_because.items()) - self._reported_losses:
            self._reported_losses.add((device, reason))
            _logger.warning("the energy of %s is lost for %s, and maybe from now on: %s", device, span, reason)


def synchronize(monitor: ZeusMonitor) -> None:
    """Wait for the accelerator, as a window of the monitor does at its edges."""
    with waiting_for("accelerator"):
        monitor._wait(monitor._awaited_indices)
