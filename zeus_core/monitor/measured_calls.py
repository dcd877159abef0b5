"""`measure`: a decorator that measures each call of a function, without a monitor."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar, overload

from zeus_core.adapters.result import show_line
from zeus_core.errors import DeviceError, UsageError
from zeus_core.measurement import Measurement
from zeus_core.monitor.no_monitor import NoMonitor
from zeus_core.monitor.windows import ZeusMonitor
from zeus_core.units import duration_text, energy_text, watt_hours_text
from zeus_core.validate import shown

_Function = TypeVar("_Function", bound=Callable[..., Any])

_logger = logging.getLogger(__name__)


@overload
def measure(function: _Function) -> _Function: ...
@overload
def measure(*, log_file: str | Path | None = None) -> Callable[[_Function], _Function]: ...
def measure(function: Any = None, *, log_file: str | Path | None = None) -> Any:
    """Measure each call of a function, and write one line on it to standard error.

        @zeus_core.measure
        def train(): ...

    The energy is all that the devices draw meanwhile. A call that raises is measured, and one that the function makes
    of itself is part of the first. An `async` function is measured with the time that it awaits, and a generator from
    its first value to its end.

    Args:
        function: The function, also a method; `measure` stands below `@classmethod` and `@staticmethod`.
        log_file: Append each call to this file; see `ZeusMonitor`. A name that ends in .csv makes it CSV.

    Raises:
        UsageError: It is no function, or an `async` generator. The first call raises it if the log cannot be written.
    """
    if function is None:
        return functools.partial(measure, log_file=log_file)
    if not callable(function) or inspect.isclass(function) or inspect.isasyncgenfunction(function):
        wanted = "a function, such as in `@zeus_core.measure` above `def train():`, and below `@classmethod`"
        raise UsageError(f"function is {shown(function)}; it must be {wanted}")
    calls = _Calls(getattr(function, "__qualname__", type(function).__name__), log_file)

    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        with calls.outermost():
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def measured_coroutine(*args: Any, **kwargs: Any) -> Any:
        with calls.outermost():
            return await function(*args, **kwargs)

    @functools.wraps(function)
    def measured_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with calls.each():
            return (yield from function(*args, **kwargs))

    if inspect.iscoroutinefunction(function):
        return measured_coroutine
    return measured_generator if inspect.isgeneratorfunction(function) else measured


class _Calls:
    """The calls of one function."""

    def __init__(self, name: str, log_file: str | Path | None) -> None:
        self._name = name
        self._log_file = log_file
        self._numbers = itertools.count(1)
        self._is_inside = ContextVar("is_inside", default=False)  # of this thread or task

    @contextmanager
    def outermost(self) -> Iterator[None]:
        """Measure a block, unless it lies within another one."""
        if self._is_inside.get():
            yield
            return
        token = self._is_inside.set(True)
        try:
            with self.each():
                yield
        finally:
            self._is_inside.reset(token)

    @contextmanager
    def each(self) -> Iterator[None]:
        """Measure a block, however it ends."""
        monitor, key, ended_by = _monitor(self._log_file), f"{self._name} #{next(self._numbers)}", ""
        monitor.begin_window(key)
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            ended_by = f", ended by {type(error).__name__}"
            raise
        finally:
            show_line(f"{self._name}: {_words(monitor.end_window(key))}{ended_by}")


@functools.cache
def _monitor(log_file: str | Path | None) -> ZeusMonitor:
    try:
        return ZeusMonitor(log_file=log_file)
    except DeviceError as error:
        _logger.warning("calls are measured without their energy: %s", error)
        return NoMonitor(str(error))


def _words(measurement: Measurement) -> str:
    """Return the time, and the energy of GPUs and CPUs, or why it is not known."""
    words, joules = [duration_text(measurement.time)], measurement.total_energy
    if measurement.lost_because:
        words.append("energy lost: " + "; ".join(f"{label}: {why}" for label, why in measurement.lost_because.items()))
    elif measurement.gpu_energy and joules is not None:
        known = energy_text(joules, measurement.total_uncertainty_joules)
        words.append(f"GPUs {known} ({watt_hours_text(joules)}), mean {measurement.average_power_watts or 0.0:.0f} W")
    if (joules := measurement.node_energy_joules) is not None:
        words.append(f"{'with CPUs' if measurement.gpu_energy else 'CPUs'} {energy_text(joules)}")
    return ", ".join(words if len(words) > 1 else [*words, "energy not measured"])
