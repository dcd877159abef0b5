"""The power limit in force, read in the background: no log waits for a driver."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

from zeus_core.device.gpu import Gpu, read_or_none
from zeus_core.monitor import ZeusMonitor
from zeus_core.training.activities._repeated_call import RepeatedCall

_PERIOD_SECONDS = 1.0
_OLD_SECONDS = 3.0  # a driver that has not answered for so long may never


class LimitReading:
    """The highest power limit of this rank's GPUs, each second from `start` to `stop`.

    Args:
        monitor: Has the GPUs.
    """

    def __init__(self, monitor: ZeusMonitor) -> None:
        self._monitor = monitor
        self._now = monitor.time_source.now
        self._watts: float | None = None
        self._read_at = -math.inf
        self._set_watts: int | None = None  # the limit that an optimizer had set then
        self._background = RepeatedCall(monitor.time_source, weakref.WeakMethod(self._read_due))

    def start(self) -> None:
        """Begin to read in the background."""
        self._background.start()

    def stop(self) -> None:
        """Read no more."""
        self._background.stop()

    def watts(self, set_watts: int | None) -> float | None:
        """Return the limit as of the last second; None if it could not be read.

        A limit that an optimizer has set since is the one that it has read back. It is read here before the first
        reading in the background, and once an optimizer has restored it.

        Args:
            set_watts: The limit that an optimizer has set; None without one.
        """
        is_set, self._set_watts = set_watts != self._set_watts, set_watts
        if is_set and set_watts is not None:
            self._note([set_watts])
        elif is_set or self._read_at == -math.inf:
            self._note(self._monitor.ask(_limit_watts, None))
        return self._watts if self._now() - self._read_at < _OLD_SECONDS else None

    def _read_due(self) -> float:
        self._note([_limit_watts(gpu) for gpu in self._monitor.gpus.values()])
        return _PERIOD_SECONDS

    def _note(self, limits: Sequence[float | None]) -> None:
        self._watts = None if None in limits else max((watts for watts in limits if watts is not None), default=None)
        self._read_at = self._now()


def _limit_watts(gpu: Gpu) -> float | None:
    return read_or_none(gpu.read_power_limit_watts)
