"""The power limit in force, read no more often than logs need it."""

from __future__ import annotations

from zeus_core.errors import DeviceError
from zeus_core.monitor import ZeusMonitor
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls


class LimitReading:
    """The highest power limit of this rank's GPUs.

    Args:
        monitor: Has the GPUs.
    """

    def __init__(self, monitor: ZeusMonitor) -> None:
        self._monitor = monitor
        self._calls = ParallelCalls()
        self.watts: float | None = None
        """The limit; None if it could not be read."""
        self.set_watts: int | None = None
        """The limit that an optimizer had set then."""
        self.is_due = True
        """Whether to read it at the next log."""

    def read(self, set_watts: int | None) -> None:
        """Read it.

        Args:
            set_watts: The limit that an optimizer has set; None without one.
        """
        self.is_due, self.set_watts, self.watts = False, set_watts, self._read()

    def _read(self) -> float | None:
        def read() -> float | None:
            return max((gpu.read_power_limit_watts() for gpu in self._monitor.gpus.values()), default=None)

        try:
            return self._calls.call_one_within(CALL_SECONDS, 0, read)
        except DeviceError:
            return None
