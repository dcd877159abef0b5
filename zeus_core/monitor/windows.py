"""`ZeusMonitor`: measuring time and energy between two points of a program."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zeus_core.clock import Clock, MonotonicClock
from zeus_core.device import Gpu, discover_gpus
from zeus_core.errors import UsageError
from zeus_core.monitor.edge import Edge, GpuEnergy, energy_between, read_edge
from zeus_core.monitor.log import WindowLog
from zeus_core.monitor.synchronize import Synchronize, synchronize_with
from zeus_core.records import Measurement

__all__ = ["Window", "ZeusMonitor"]

_logger = logging.getLogger(__name__)


@dataclass
class Window:
    """A window opened with `ZeusMonitor.window`; it holds the measurement once it is closed."""

    name: str
    _measurement: Measurement | None = None

    @property
    def measurement(self) -> Measurement:
        """What was measured.

        Raises:
            UsageError: The window is still open, or was left by an exception.
        """
        if self._measurement is None:
            raise UsageError(f"window {self.name!r} has no measurement: read it after the `with` block has ended")
        return self._measurement


@dataclass(frozen=True)
class _OpenWindow:
    start_time: float  # of the wall clock, for the log
    began_at: float  # of the monitor's clock
    edges: list[Edge]


class ZeusMonitor:
    """Measures the time and energy of named windows, which may nest and overlap.

    Args:
        gpu_indices: The GPUs to measure, by the framework's index (after `CUDA_VISIBLE_DEVICES`). All visible ones if
            None; an empty list measures time alone.
        cpu_indices: CPU packages to measure. Not measured by this version: `cpu_energy` is None.
        approx_instant_energy: Kept for programs written for the `zeus` package. A window in which no energy counter
            stepped is always estimated from the power, and marked so.
        log_file: Appends each finished window to this file; see `WindowLog` for the format.
        sync_execution_with: The framework to wait for at both edges of a window: "torch", "jax" or "cupy".
        gpus: The machine's GPUs; found by `discover_gpus` if None.
        clock: Source of time; monotonic real time if None.
        synchronize: Waits for the accelerator, in place of `sync_execution_with`.

    Raises:
        NoDeviceError: There is no GPU, and `gpu_indices` does not say that none is wanted.
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
        gpus: Sequence[Gpu] | None = None,
        clock: Clock | None = None,
        synchronize: Synchronize | None = None,
    ) -> None:
        self.gpus: dict[int, Gpu] = _chosen_gpus(gpu_indices, gpus)
        """The measured GPUs by index."""
        self.clock: Clock = clock or MonotonicClock()
        """The clock that times the windows."""
        self.approx_instant_energy = approx_instant_energy
        self._synchronize = synchronize or synchronize_with(sync_execution_with)
        self._log = WindowLog(Path(log_file), self.gpu_indices) if log_file is not None else None
        self._lock = threading.Lock()
        self._open_windows: dict[str, _OpenWindow] = {}
        if cpu_indices:
            _logger.warning("cpu_indices is %s, but this version does not measure CPUs yet", list(cpu_indices))

    @property
    def gpu_indices(self) -> list[int]:
        """Indices of the measured GPUs."""
        return list(self.gpus)

    def begin_window(self, key: str, sync_execution: bool = True, restart: bool = False) -> None:
        """Open a window.

        Args:
            key: Its name, unique among the open windows.
            sync_execution: Wait for the accelerator first.
            restart: Drop a window of that name if one is open, instead of raising.

        Raises:
            UsageError: A window of that name is open.
        """
        if sync_execution:
            self._synchronize(self.gpu_indices)
        window = _OpenWindow(time.time(), self.clock.now(), self._read_edges())
        with self._lock:
            if key in self._open_windows and not restart:
                raise UsageError(
                    f"window {key!r} is already open; end it first, choose another name, or pass restart=True"
                )
            self._open_windows[key] = window

    def end_window(self, key: str, sync_execution: bool = True, cancel: bool = False) -> Measurement:
        """Close a window.

        Args:
            key: The name it was opened with.
            sync_execution: Wait for the accelerator first.
            cancel: Drop the window: what is returned holds no time and no energy, and nothing is logged.

        Raises:
            UsageError: No window of that name is open.
        """
        with self._lock:
            window = self._open_windows.pop(key, None)
            names = sorted(self._open_windows)
        if window is None:
            raise UsageError(f"window {key!r} is not open; open windows: {', '.join(map(repr, names)) or 'none'}")
        if sync_execution:
            self._synchronize(self.gpu_indices)
        if cancel:
            return Measurement(time=0.0, gpu_energy={})
        measurement = self._measure(window, self._read_edges(), self.clock.now() - window.began_at)
        if self._log is not None:
            self._log.append(window.start_time, key, measurement)
        return measurement

    @contextmanager
    def window(self, name: str, sync_execution: bool = True) -> Iterator[Window]:
        """Measure a `with` block; `.measurement` of what it yields is there once the block has ended.

        An exception in the block drops the window and goes on.
        """
        window = Window(name)
        self.begin_window(name, sync_execution)
        try:
            yield window
        except BaseException:
            self.cancel(name)
            raise
        window._measurement = self.end_window(name, sync_execution)

    def cancel(self, name: str) -> None:
        """Drop an open window; nothing happens if there is none of that name."""
        with self._lock:
            self._open_windows.pop(name, None)

    def restart(self, name: str) -> None:
        """Begin an open window anew, or open it."""
        self.begin_window(name, restart=True)

    def reset_windows(self) -> None:
        """Drop all open windows."""
        with self._lock:
            self._open_windows.clear()

    def _read_edges(self) -> list[Edge]:
        return [read_edge(gpu) for gpu in self.gpus.values()]

    def _measure(self, window: _OpenWindow, ends: list[Edge], elapsed_seconds: float) -> Measurement:
        energies: dict[int, GpuEnergy] = {
            index: energy_between(begin, end, elapsed_seconds, gpu.energy_counter_period_seconds)
            for (index, gpu), begin, end in zip(self.gpus.items(), window.edges, ends, strict=True)
        }
        for index, energy in energies.items():
            if energy.lost_because is not None:
                _logger.warning("the energy of GPU %d is lost for a window: %s", index, energy.lost_because)
        return Measurement(
            time=elapsed_seconds,
            gpu_energy={index: energy.energy_joules for index, energy in energies.items()},
            gpu_method={index: energy.method for index, energy in energies.items()},
            gpu_uncertainty_joules={index: energy.uncertainty_joules for index, energy in energies.items()},
        )


def _chosen_gpus(gpu_indices: Sequence[int] | None, gpus: Sequence[Gpu] | None) -> dict[int, Gpu]:
    if gpu_indices is not None and len(gpu_indices) == 0:
        return {}
    visible = list(gpus) if gpus is not None else discover_gpus()
    indices = list(range(len(visible))) if gpu_indices is None else list(gpu_indices)
    for index in indices:
        if not isinstance(index, int) or not 0 <= index < len(visible):
            raise UsageError(
                f"gpu_indices is {indices!r}, but there is no GPU {index!r}: this process sees {len(visible)} GPU(s), "
                f"with indices 0 to {len(visible) - 1}"
            )
    if len(set(indices)) != len(indices):
        raise UsageError(f"gpu_indices is {indices!r}, which names a GPU twice; name each once")
    return {index: visible[index] for index in indices}
