"""A meter that cannot disturb the command it measures: it neither raises nor hangs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from zeus_core.cli.metering import MachineMeter, open_meter
from zeus_core.cli.run._window_samples import WindowSamples, limits_watts
from zeus_core.errors import UsageError
from zeus_core.process.parallel import ParallelCalls

if TYPE_CHECKING:
    from zeus_core.device import Gpu
    from zeus_core.measurement import Device, Measurement

# Both trade the energy of a slow driver's machine for a command that starts and ends on time.
_PATIENCE_SECONDS = 60.0  # without persistence mode, the driver first initializes every board, about 20 s for eight
_EDGE_SECONDS = 10.0  # for one reading, at the start and at the end of the command
_SIMULATED = "The simulated GPUs are idle, as the command does not run on them: this is their idle energy"

_Answer = TypeVar("_Answer")


def within(seconds: float, function: Callable[[], _Answer]) -> _Answer:
    """Call a function in a thread of its own, and wait for its answer for at most so many seconds.

    Signals do not reach that thread and those it starts: the main thread waits for them.

    Raises:
        DriverFaultError: There is no answer yet. The function goes on, and its answer is lost.
        Exception: The function raised it.
    """
    calls = ParallelCalls()
    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        calls.start(1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, original_mask)
    return calls.call_one_within(seconds, 0, function)


class GuardedMeter:
    """A `MachineMeter` for one window. Every fault becomes a note.

    Args:
        indices: GPUs to measure; all visible ones if None.
        patience_seconds: How long to wait until all is ready.
        edge_seconds: How long to wait for the window to begin, and for it to end.

    Attributes:
        notes: The faults, and what else people should know of the numbers.
        gpus: The measured GPUs.
        names: The name of each measured device.
        is_simulated: Whether any GPU is simulated.
        samples: Energy and sharing over time, once the window has begun.

    Raises:
        UsageError: There is no such GPU. No command runs yet.
    """

    def __init__(
        self,
        indices: Sequence[int] | None,
        patience_seconds: float = _PATIENCE_SECONDS,
        edge_seconds: float = _EDGE_SECONDS,
    ) -> None:
        self.notes: list[str] = []
        self.gpus: Sequence[Gpu] = ()
        self.names: Mapping[Device, str] = {}
        self.is_simulated: bool = False
        self.samples: WindowSamples | None = None
        self._meter: MachineMeter | None = None
        self._edge_seconds = edge_seconds
        opened = self._guarded(patience_seconds, lambda: _opened(indices))
        if opened is None:
            return
        self._meter, self._limits_watts = opened
        self.gpus, self.names = list(self._meter.monitor.gpus.values()), self._meter.names
        self.is_simulated = self._meter.is_simulated
        self.notes += [*self._meter.notes, *([_SIMULATED] if self.is_simulated else [])]

    def begin(self) -> None:
        """Open the window."""
        self.samples = self._guarded(self._edge_seconds, self._begun)

    def _begun(self) -> WindowSamples | None:
        if self._meter is None:
            return None
        self._meter.begin()
        return WindowSamples(self._meter, self._limits_watts)

    def end(self) -> Measurement | None:
        """Close the window; None if there was a fault. The samples are gone then, too."""
        measurement = self._guarded(self._edge_seconds, self._ended)
        if measurement is None:
            self.samples = None
        elif self.samples is not None:
            self.notes += self.samples.remarks
        return measurement

    def _ended(self) -> Measurement | None:
        if self._meter is None or self.samples is None:
            return None
        measurement = self._meter.end()
        self.samples.end(measurement)
        return measurement

    def _guarded(self, seconds: float, act: Callable[[], _Answer]) -> _Answer | None:
        try:
            return within(seconds, act)
        except UsageError:
            raise
        except Exception as error:
            self._meter = None
            self.notes.append(f"Energy is not measured: {error or type(error).__name__}")
            return None


def _opened(indices: Sequence[int] | None) -> tuple[MachineMeter, dict[int, float | None]]:
    """Return the meter, and the power limits before the run changes them."""
    meter = open_meter(indices)
    return meter, limits_watts(meter.monitor)
