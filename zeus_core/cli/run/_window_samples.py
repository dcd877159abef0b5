"""The window of `zeus-core run` over time: its energy, and other processes on its GPUs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from zeus_core.cli.text import readable
from zeus_core.device.sharing import Sharing
from zeus_core.monitor.selection import local_rank_of
from zeus_core.ports.background import repeatedly
from zeus_core.ports.time_source import clock_seconds

if TYPE_CHECKING:
    from zeus_core.cli.metering import MachineMeter
    from zeus_core.measurement import Measurement
    from zeus_core.monitor import ZeusMonitor

_PERIOD_SECONDS = 1.0
_SAMPLES = 240  # as many as a file keeps: a long run is sampled less often
_MOST_SECONDS = 60.0  # between two samples, of which one lies over each change of an intensity or price
_FIRST_KEEP_SECONDS = 10.0  # short commands keep nothing: what writes it takes some 0.1 s to load
_KEEP_SECONDS = 600.0  # as often as a training is kept


class Sample(NamedTuple):
    """The energy since the window was opened, until a moment of the clock in seconds since 1970."""

    clock_seconds: float
    measurement: Measurement


class WindowSamples:
    """Reads the energy in the background while a window is open.

    Args:
        meter: Measures the window, which has just been opened.
        limits_watts: The power limit of each GPU before the run changed it, by index; None if unknown.

    Attributes:
        keep: Records the measurement so far, after ten seconds and then every ten minutes, for a run that is killed;
            nothing does if None. It must neither raise nor wait.
    """

    def __init__(self, meter: MachineMeter, limits_watts: Mapping[int, float | None]) -> None:
        self.limits_watts = limits_watts
        self.keep: Callable[[Measurement], object] | None = None
        self._meter, self._time_source = meter, meter.monitor.time_source
        self._samples: list[Sample] = []  # some 11,000 in a week: 16 MB for eight GPUs
        self._lock = threading.Lock()  # a sample that is late is not recorded after the end
        self._has_ended = False
        is_rank = local_rank_of(os.environ)[1] > 1
        self._sharing = {index: Sharing(gpu, is_rank) for index, gpu in meter.monitor.gpus.items()}
        self._begin = self._latest = self._time_source.now()
        self._keep_at = self._begin + _FIRST_KEEP_SECONDS
        self._stop = repeatedly(self._time_source, self._sample, _PERIOD_SECONDS)

    def _sample(self) -> None:
        """Read the energy and look around, if that is due."""
        now = self._time_source.now()
        spacing_seconds = min((now - self._begin) / _SAMPLES, _MOST_SECONDS)
        if now - self._latest < max(0.999 * _PERIOD_SECONDS, spacing_seconds):
            return
        for sharing in self._sharing.values():
            sharing.look(now)
        measurement = self._meter.so_far()
        with self._lock:
            if self._has_ended:
                return
            self._latest = now
            self._samples.append(Sample(clock_seconds(self._time_source), measurement))
            if self.keep is not None and now >= self._keep_at:
                self._keep_at = now + _KEEP_SECONDS
                self.keep(measurement)

    def end(self, measurement: Measurement) -> None:
        """Stop, and add the energy of the whole window."""
        self._stop()
        with self._lock:
            self._has_ended = True
            self._samples.append(Sample(clock_seconds(self._time_source), measurement))

    @property
    def remarks(self) -> list[str]:
        """Remarks on the numbers for people: which GPUs were shared."""
        remarks = {index: sharing.remark for index, sharing in self._sharing.items()}
        return [f"GPU {index}: {remark}" for index, remark in remarks.items() if remark is not None]

    def in_time(self) -> list[Sample]:
        """Return the samples in their order: of two close together at the end, the latter one."""
        *samples, whole = self._samples
        end_seconds = whole.measurement.time - _PERIOD_SECONDS / 2
        return [sample for sample in samples if sample.measurement.time < end_seconds] + [whole]


def limits_watts(monitor: ZeusMonitor) -> dict[int, float | None]:
    """Return the power limit of each GPU, by index; None if it cannot be read."""
    limits: list[float | None] = monitor.ask(lambda gpu: readable(gpu.read_power_limit_watts), None)
    return dict(zip(monitor.gpus, limits, strict=True))
