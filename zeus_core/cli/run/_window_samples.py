"""The window of `zeus-core run` over time: power, other processes on its GPUs, emissions and cost."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zeus_core.cli.text import readable
from zeus_core.device.gpu import Sharing
from zeus_core.monitor.selection import local_rank_of
from zeus_core.ports.background import repeatedly
from zeus_core.ports.time_source import clock_seconds

if TYPE_CHECKING:
    from zeus_core.cli.metering import MachineMeter
    from zeus_core.cli.run._window_charges import WindowCharges
    from zeus_core.measurement import Measurement
    from zeus_core.monitor import ZeusMonitor

_PERIOD_SECONDS = 1.0
_SAMPLES = 240  # as many as a file keeps: a long run is sampled less often, and each reading takes some milliseconds
_FIRST_KEEP_SECONDS = 10.0  # short commands keep nothing: what writes it takes some 0.1 s to load
_KEEP_SECONDS = 600.0  # as often as a training is kept


class WindowSamples:
    """Reads the energy in the background while a window is open.

    Args:
        meter: Measures the window, which has just been opened.
        limits_watts: The power limit of each GPU before the run changed it, by index; None if unknown.
        charges: Charges the energy; None without a stated electricity.

    Attributes:
        keep: Records the measurement so far, after ten seconds and then every ten minutes, for a run that is killed;
            nothing does if None. It must neither raise nor wait.
    """

    def __init__(
        self,
        meter: MachineMeter,
        limits_watts: Mapping[int, float | None],
        charges: WindowCharges | None = None,
    ) -> None:
        self.limits_watts, self.charges = limits_watts, charges
        self.keep: Callable[[Measurement], object] | None = None
        self._meter, self._time_source = meter, meter.monitor.time_source
        self._measured: list[Measurement] = []  # each since the begin; some 2,000 in a week
        self._lock = threading.Lock()  # a sample that is late is neither recorded nor charged after the end
        self._has_ended = False
        is_rank = local_rank_of(os.environ)[1] > 1
        self._sharing = {index: Sharing(gpu, is_rank) for index, gpu in meter.monitor.gpus.items()}
        self._begin = self._latest = self._time_source.now()
        self._keep_at = self._begin + _FIRST_KEEP_SECONDS
        self._charge_at = math.inf if charges is None else self._begin
        self._stop = repeatedly(self._time_source, self._sample, _PERIOD_SECONDS)

    def _sample(self) -> None:
        """Read the energy and look around, if that is due."""
        now = self._time_source.now()
        is_point = now - self._latest >= max(0.999 * _PERIOD_SECONDS, (now - self._begin) / _SAMPLES)
        if not is_point and now < self._charge_at:
            return
        for sharing in self._sharing.values():
            sharing.look(now)
        measurement = self._meter.so_far()
        with self._lock:
            if self._has_ended:
                return
            if is_point:
                self._latest = now
                self._measured.append(measurement)
            self._charge(measurement, now)
            if self.keep is not None and now >= self._keep_at:
                self._keep_at = now + _KEEP_SECONDS
                self.keep(measurement)

    def _charge(self, measurement: Measurement, now: float) -> None:
        if self.charges is not None:
            self._charge_at = now + self.charges.charge(measurement, clock_seconds(self._time_source))

    def end(self, measurement: Measurement) -> None:
        """Stop, and add the energy of the whole window."""
        self._stop()
        with self._lock:
            self._has_ended = True
            self._measured.append(measurement)
            self._charge(measurement, self._latest)

    @property
    def remarks(self) -> list[str]:
        """Remarks on the numbers for people: which GPUs were shared."""
        remarks = {index: sharing.remark for index, sharing in self._sharing.items()}
        return [f"GPU {index}: {remark}" for index, remark in remarks.items() if remark is not None]

    def in_time(self) -> list[Measurement]:
        """Return the energy since the beginning over time: of two close together at the end, the latter one."""
        *samples, whole = self._measured
        return [each for each in samples if whole.time - each.time > _PERIOD_SECONDS / 2] + [whole]


def limits_watts(monitor: ZeusMonitor) -> dict[int, float | None]:
    """Return the power limit of each GPU, by index; None if it cannot be read."""
    limits: list[float | None] = monitor.ask(lambda gpu: readable(gpu.read_power_limit_watts), None)
    return dict(zip(monitor.gpus, limits, strict=True))
