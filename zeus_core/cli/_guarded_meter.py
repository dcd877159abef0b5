"""Measuring that cannot disturb what is measured: it neither raises nor hangs."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from zeus_core.cli._metering import MachineMeter, open_meter
from zeus_core.cli._summary import MeasuredDevice
from zeus_core.errors import UsageError

__all__ = ["GuardedMeter", "within"]

_PATIENCE_SECONDS = 60.0  # a driver that must first start eight boards takes about 20
_EDGE_SECONDS = 10.0
_SIMULATED = "The GPUs are simulated: their energy is that of idling, for the command does not run on them."

_Answer = TypeVar("_Answer")


def within(seconds: float, function: Callable[[], _Answer]) -> _Answer:
    """Call a function in a thread of its own, and wait for its answer so long.

    No signal reaches that thread and those it starts: they are for whoever waits for them in the main thread.

    Raises:
        TimeoutError: There is no answer yet. The function goes on, and whatever it says is lost.
        Exception: What the function raised.
    """
    answers: queue.SimpleQueue[Future[_Answer]] = queue.SimpleQueue()

    def work() -> None:
        answer: Future[_Answer] = Future()
        try:
            answer.set_result(function())
        except Exception as error:
            answer.set_exception(error)
        answers.put(answer)

    found = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=work, name="zeus-core meter", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, found)
    try:
        return answers.get(timeout=seconds).result()
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


class GuardedMeter:
    """A `MachineMeter` for one window, whose every fault ends up in the notes.

    Args:
        indices: GPUs to measure; all visible ones if None.
        patience_seconds: How long to wait until all is ready.
        edge_seconds: How long to wait for the window to begin, and for it to end.

    Raises:
        UsageError: There is no such GPU. This is found before there is anything to disturb.
    """

    def __init__(
        self,
        indices: Sequence[int] | None,
        patience_seconds: float = _PATIENCE_SECONDS,
        edge_seconds: float = _EDGE_SECONDS,
    ) -> None:
        self.notes: list[str] = []
        self._edge_seconds = edge_seconds
        self._meter: MachineMeter | None = None
        try:
            self._meter = within(patience_seconds, lambda: open_meter(indices))
        except UsageError:
            raise
        except Exception as error:
            self._give_up(error)
        else:
            self.notes.extend(self._meter.notes)
            if self.is_simulated:
                self.notes.append(_SIMULATED)

    @property
    def is_simulated(self) -> bool:
        """Whether any GPU is simulated."""
        return self._meter is not None and self._meter.is_simulated

    def begin(self) -> None:
        """Open the window."""
        if self._meter is not None:
            try:
                within(self._edge_seconds, self._meter.begin)
            except Exception as error:
                self._give_up(error)

    def end(self) -> tuple[list[MeasuredDevice], float | None]:
        """What was measured, and the seconds between the two readings; nothing if there was a fault."""
        meter = self._meter
        if meter is None:
            return [], None
        try:
            measurement = within(self._edge_seconds, meter.end)
        except Exception as error:
            self._give_up(error)
            return [], None
        return meter.device_energies(measurement), measurement.time

    def _give_up(self, error: Exception) -> None:
        self._meter = None
        self.notes.append(f"Energy is not measured: {error or type(error).__name__}")
