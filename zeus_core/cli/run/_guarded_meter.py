"""A meter that cannot disturb the command it measures: it neither raises nor hangs."""

from __future__ import annotations

import contextlib
import functools
import queue
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from zeus_core.cli.metering import MachineMeter, open_meter
from zeus_core.cli.run._window_power import WindowPower, limits_watts
from zeus_core.errors import UsageError

if TYPE_CHECKING:
    from zeus_core.cli.run._node_power import NodePower
    from zeus_core.cli.run._window_charges import WindowCharges
    from zeus_core.device import Gpu
    from zeus_core.electricity import Electricity
    from zeus_core.measurement import Device, Measurement

# Both trade the energy of a slow driver's machine for a command that starts and ends on time.
_PATIENCE_SECONDS = 60.0  # without persistence mode, the driver first initializes every board, about 20 s for eight
_EDGE_SECONDS = 10.0  # for one reading, at the start and at the end of the command
_SIMULATED = "The energy of simulated GPUs is that of idle ones: the command does not run on them"

_Answer = TypeVar("_Answer")


def within(seconds: float, function: Callable[[], _Answer]) -> _Answer:
    """Call a function in a thread of its own, and wait for its answer for at most so many seconds.

    Signals do not reach that thread and those it starts: the main thread waits for them.

    Raises:
        TimeoutError: There is no answer yet. The function goes on, and its answer is lost.
        Exception: The function raised it.
    """
    answers: queue.SimpleQueue[Future[_Answer]] = queue.SimpleQueue()

    def work() -> None:
        answer: Future[_Answer] = Future()
        try:
            answer.set_result(function())
        except Exception as error:
            answer.set_exception(error)
        answers.put(answer)

    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=work, name="zeus-core meter", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, original_mask)
    try:
        return answers.get(timeout=seconds).result()
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


class GuardedMeter:
    """A `MachineMeter` for one window. Every fault becomes a note.

    Args:
        indices: GPUs to measure; all visible ones if None.
        patience_seconds: How long to wait until all is ready.
        edge_seconds: How long to wait for the window to begin, and for it to end.
        electricity: The intensity and price that the energy is charged at; none if None.
        measures_node: Whether to measure the whole machine, too.

    Attributes:
        charges: Emissions and cost of the energy, once the window has begun; None without `electricity`.
        power: The power of the GPUs over time, once the window has begun; None without any.

    Raises:
        UsageError: There is no such GPU, or no meter of the machine. No command runs yet.
    """

    def __init__(
        self,
        indices: Sequence[int] | None,
        patience_seconds: float = _PATIENCE_SECONDS,
        edge_seconds: float = _EDGE_SECONDS,
        electricity: Electricity | None = None,
        measures_node: bool = False,
    ) -> None:
        self.notes: list[str] = []
        self.charges: WindowCharges | None = None
        self.power: WindowPower | None = None
        self._limits_watts: dict[int, float | None] = {}
        self._electricity = electricity
        self._edge_seconds = edge_seconds
        self._meter: MachineMeter | None = None
        self._node: NodePower | None = None
        if measures_node:
            from zeus_core.cli.run._node_power import NodePower

            self._node = NodePower()
        try:
            self._meter, self._limits_watts = within(patience_seconds, lambda: _opened(indices))
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

    @property
    def names(self) -> Mapping[Device, str]:
        """The name of each measured device."""
        return {} if self._meter is None else self._meter.names

    @property
    def gpus(self) -> Sequence[Gpu]:
        """The measured GPUs."""
        return () if self._meter is None else list(self._meter.monitor.gpus.values())

    @property
    def node(self) -> dict[str, float | None] | None:
        """The energy of the whole machine, once the window has ended; None if it was not measured."""
        return None if self._node is None else self._node.fields

    def begin(self) -> None:
        """Open the window."""
        if self._node is not None:
            with contextlib.suppress(TimeoutError):  # then the reading that it waits for is the first one
                within(self._edge_seconds, self._node.begin)
        if self._meter is not None:
            try:
                within(self._edge_seconds, functools.partial(self._begin, self._meter))
            except Exception as error:
                self._give_up(error)

    def end(self) -> Measurement | None:
        """Close the window; None if there was a fault."""
        if self._node is not None:
            self.notes.append(self._node.end())
        if self._meter is not None:
            try:
                return within(self._edge_seconds, functools.partial(self._end, self._meter))
            except Exception as error:
                self._give_up(error)
        return None

    def _begin(self, meter: MachineMeter) -> None:
        meter.begin()
        if meter.monitor.gpus:
            self.power = WindowPower(meter.monitor, self._limits_watts)
        if self._electricity is not None:
            from zeus_core.cli.run._window_charges import WindowCharges

            self.charges = WindowCharges(self._electricity, meter.monitor)

    def _end(self, meter: MachineMeter) -> Measurement:
        measurement = meter.end()
        if self.power is not None:
            self.power.end(measurement)
            self.notes.extend(self.power.remarks)
        if self.charges is not None:
            self.charges.end(measurement)
        return measurement

    def _give_up(self, error: Exception) -> None:
        self._meter = None
        self.notes.append(f"Energy is not measured: {error or type(error).__name__}")


def _opened(indices: Sequence[int] | None) -> tuple[MachineMeter, dict[int, float | None]]:
    """Return the meter, and the power limits before the run changes them."""
    meter = open_meter(indices)
    return meter, limits_watts(meter.monitor)
