"""Device events of CUDA: events in a stream, and their times by the host's clock."""

from __future__ import annotations

import threading
from typing import Any

import torch

from zeus_core.errors import UsageError
from zeus_core.ports import DeviceEvent, DeviceEvents, TimeSource
from zeus_core.ports.accelerator import INDEXED_TYPES
from zeus_core.ports.device_events import HostEvents
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.validate import shown

_ANCHOR_SECONDS = 4.0
"""CUDA reports the time between two events in milliseconds, as a 32-bit float. Up to 4.096 s its resolution is 0.25 µs,
finer than the 0.5 µs of an event; after 3 hours it would be 1 ms."""

# Events on the idle device of which the most accurately timed is the first anchor: a preemption of the host spoils few.
_FIRST_TRIES = 5


class CudaEvents:
    """Makes events in the current stream of a CUDA device, without waiting.

    Times are counted from an anchor: an earlier event whose time is known. The first is compared with the host's clock
    while the device idles; after that, the first event in every 4 seconds is the anchor of those that follow. The
    rounding errors of these hops add up to some 10 µs in an hour. The clocks of device and host drift apart by more
    than that (some parts per million), so the time of an anchor is also clamped between the moment the host recorded it
    and the moment the device was seen to be past it: its error stays below the lag of the device behind the host.

    Events of one anchor are not corrected against each other: the time between them is as the device reports it.

    While another thread waits for an event, no CUDA graph can be captured in CUDA's global mode.

    Args:
        device: The device on which the work runs. Synchronized once, here.
        time_source: The monitor's time source.
        cuda: Provides `Event`, `current_stream`, `set_device` and `synchronize` like `torch.cuda` and `torch.xpu`.
    """

    def __init__(self, device: torch.device | str, time_source: TimeSource, cuda: Any = torch.cuda) -> None:
        self._device = torch.device(device)
        self._time_source = time_source
        self._cuda = cuda
        self._options = {"enable_timing": True} | ({} if self._device.type == "xpu" else {"blocking": True})
        self._threads = threading.local()
        self._threads.is_on_device = True  # this one, in which training chooses the device
        self._anchor = self._first_anchor()

    def __call__(self) -> DeviceEvent:
        """Make an event at the current point of the calling thread."""
        now_seconds = self._time_source.now()
        event = self._record()
        if now_seconds - self._anchor.recorded_seconds >= _ANCHOR_SECONDS:
            self._anchor.seconds()  # resolves it, so that few anchors have an unknown time
            self._anchor = _Anchor(event, now_seconds, self._time_source, previous=self._anchor)
        return _CudaEvent(event, self._anchor, self)

    def enter_thread(self) -> None:
        """Let the calling thread use this device; it would use the first one, and allocate memory there."""
        if not getattr(self._threads, "is_on_device", False):
            self._cuda.set_device(self._device)
            self._threads.is_on_device = True

    def _record(self) -> Any:
        event = self._cuda.Event(**self._options)
        event.record(self._cuda.current_stream(self._device))
        return event

    def _first_anchor(self) -> _Anchor:
        """Return the most accurately timed of a few events on the idle device."""
        self._cuda.synchronize(self._device)
        tries = []
        for _ in range(_FIRST_TRIES):
            before_seconds = self._time_source.now()
            event = self._record()
            event.synchronize()
            tries.append((self._time_source.now() - before_seconds, before_seconds, event))
        width_seconds, before_seconds, event = min(tries, key=lambda trial: trial[0])
        return _Anchor(event, before_seconds, self._time_source, seconds=before_seconds + width_seconds / 2)


class _Anchor:
    """An event that others are timed from."""

    def __init__(
        self,
        event: Any,
        recorded_seconds: float,
        time_source: TimeSource,
        previous: _Anchor | None = None,
        seconds: float | None = None,
    ) -> None:
        self.recorded_seconds = recorded_seconds
        self._event = event
        self._time_source = time_source
        self._previous = previous
        self._seconds = seconds

    def wait(self) -> None:
        if (previous := self._previous) is not None:
            previous.wait()
        self._event.synchronize()

    def seconds(self) -> float | None:
        if (previous := self._previous) is not None and (seconds := previous.seconds_of(self._event)) is not None:
            self._seconds = min(max(seconds, self.recorded_seconds), self._time_source.now())
            self._previous = None  # last, as another thread may ask at the same time
        return self._seconds

    def seconds_of(self, event: Any) -> float | None:
        own_seconds = self.seconds()
        if own_seconds is None or not event.query():
            return None
        return own_seconds + float(self._event.elapsed_time(event)) / 1000.0


class _CudaEvent:
    __slots__ = ("_anchor", "_device_events", "_event", "_seconds")

    def __init__(self, event: Any, anchor: _Anchor, device_events: CudaEvents) -> None:
        self._event = event
        self._anchor = anchor
        self._device_events = device_events
        self._seconds: float | None = None

    def wait(self) -> None:
        self._device_events.enter_thread()
        self._anchor.wait()  # reached already, unless the current stream has changed
        self._event.synchronize()

    def seconds(self) -> float | None:
        if self._seconds is None:
            self._seconds = self._anchor.seconds_of(self._event)
        return self._seconds


def device_events_for(device: torch.device | str, time_source: TimeSource) -> DeviceEvents:
    """Return the device events of a device: `CudaEvents` for one of CUDA or XPU, `HostEvents` for any other.

    Args:
        device: The device.
        time_source: The monitor's time source.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """
    time_source = time_source or MonotonicTime()
    try:
        kind = torch.device(device).type
    except Exception as error:  # torch knows no such device, or refuses the type of the argument
        wanted = 'a torch.device or its name, such as "cuda:0"'
        raise UsageError(f"device is {shown(device)}; it must be {wanted}: {error}") from error
    if kind in INDEXED_TYPES:
        return CudaEvents(device, time_source, getattr(torch, kind))
    return HostEvents(time_source)
