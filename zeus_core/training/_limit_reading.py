"""The power limit in force, read no more often than logs need it."""

from __future__ import annotations

from zeus_core._process.deadline import CALL_SECONDS
from zeus_core._process.parallel import ParallelCalls
from zeus_core.errors import DeviceError
from zeus_core.monitor import ZeusMonitor

__all__ = ["LimitReading"]


class LimitReading:
    """The highest power limit of this rank's GPUs.

    Args:
        monitor: Has the GPUs.
    """

    def __init__(self, monitor: ZeusMonitor) -> None:
        self._monitor = monitor
        self._calls = ParallelCalls()
        self._watts: float | None = None
        self._set_watts: int | None = None
        self.is_due = True
        """Whether to read it at the next log."""

    def watts(self, set_watts: int | None) -> float | None:
        """Return it; None if it cannot be read. It is read if that is due, or if an optimizer has set another one.

        Args:
            set_watts: The limit that the optimizer has set; None without one.
        """
        if self.is_due or set_watts != self._set_watts:
            self.is_due, self._set_watts = False, set_watts
            self._watts = self._read()
        return self._watts

    def _read(self) -> float | None:
        def read() -> float | None:
            return max((gpu.read_power_limit_watts() for gpu in self._monitor.gpus.values()), default=None)

        try:
            return self._calls.call_one_within(CALL_SECONDS, 0, read)
        except DeviceError:
            return None
