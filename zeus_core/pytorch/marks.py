"""Marks on the timeline of a CUDA device: events in its stream, and when they were by the host's clock."""

from __future__ import annotations

import threading
from typing import Any

import torch

from zeus_core.clock import Clock
from zeus_core.optimizer.pipeline_frequency.marks import HostMarks, Mark, MarkMaker

__all__ = ["CudaMarks", "marks_for"]

_ANCHOR_SECONDS = 4.0
"""CUDA tells the time between two events in milliseconds, as a 32-bit float. Up to 4.096 s its steps are 0.25 µs, less
than the 0.5 µs an event is good for; after 3 hours they would be 1 ms."""

_FIRST_TRIES = 5


class CudaMarks:
    """Marks points in the current stream of a CUDA device. Making one takes an event, and waits for nothing.

    Times are counted from an anchor: an earlier event whose time is known. The first is compared with the host's clock
    while the device idles; after that, the first mark in every 4 seconds is the anchor of those that follow. The
    rounding of these hops adds up to some 10 µs in an hour. The clocks of device and host drift apart by more than that
    (some parts in a million), so an anchor is also held between the moment the host recorded it and the moment the
    device was seen to be past it: its error stays below how far the device runs behind the host.

    Marks of one anchor are not corrected against each other: how far they lie apart is what the device says.

    While a mark is waited for in another thread, no CUDA graph can be captured in CUDA's global mode.

    Args:
        device: The device, which the marked work runs on. Waited for once, here.
        clock: The monitor's clock.
        cuda: What has `Event`, `current_stream`, `set_device` and `synchronize` as `torch.cuda` has them.
    """

    def __init__(self, device: torch.device | str, clock: Clock, cuda: Any = torch.cuda) -> None:
        self._device = torch.device(device)
        self._clock = clock
        self._cuda = cuda
        self._threads = threading.local()
        self._threads.is_on_device = True  # this one, where training decides
        self._anchor = self._first_anchor()

    def __call__(self) -> Mark:
        """A mark of the point the calling thread has come to."""
        now_seconds = self._clock.now()
        event = self._record()
        if now_seconds - self._anchor.recorded_seconds >= _ANCHOR_SECONDS:
            self._anchor.seconds()  # so that there are never many anchors of unknown time
            self._anchor = _Anchor(event, now_seconds, self._clock, previous=self._anchor)
        return _CudaMark(event, self._anchor, self)

    def enter_thread(self) -> None:
        """Have the calling thread use this device; else it would take hold of the first one, and of memory there."""
        if not getattr(self._threads, "is_on_device", False):
            self._cuda.set_device(self._device)
            self._threads.is_on_device = True

    def _record(self) -> Any:
        event = self._cuda.Event(enable_timing=True, blocking=True)
        event.record(self._cuda.current_stream(self._device))
        return event

    def _first_anchor(self) -> _Anchor:
        """The event whose time is known best, of a few on the idle device."""
        self._cuda.synchronize(self._device)
        tries = []
        for _ in range(_FIRST_TRIES):
            before_seconds = self._clock.now()
            event = self._record()
            event.synchronize()
            tries.append((self._clock.now() - before_seconds, before_seconds, event))
        width_seconds, before_seconds, event = min(tries, key=lambda it: it[0])
        return _Anchor(event, before_seconds, self._clock, seconds=before_seconds + width_seconds / 2)


class _Anchor:
    """An event that others are timed from."""

    def __init__(
        self,
        event: Any,
        recorded_seconds: float,
        clock: Clock,
        previous: _Anchor | None = None,
        seconds: float | None = None,
    ) -> None:
        self.recorded_seconds = recorded_seconds
        self._event = event
        self._clock = clock
        self._previous = previous
        self._seconds = seconds

    def wait(self) -> None:
        if (previous := self._previous) is not None:
            previous.wait()
        self._event.synchronize()

    def seconds(self) -> float | None:
        if (previous := self._previous) is not None and (seconds := previous.seconds_of(self._event)) is not None:
            self._seconds = min(max(seconds, self.recorded_seconds), self._clock.now())
            self._previous = None  # only now: another thread may ask at the same time
        return self._seconds

    def seconds_of(self, event: Any) -> float | None:
        own_seconds = self.seconds()
        if own_seconds is None or not event.query():
            return None
        return own_seconds + float(self._event.elapsed_time(event)) / 1000.0


class _CudaMark:
    __slots__ = ("_anchor", "_event", "_marks", "_seconds")

    def __init__(self, event: Any, anchor: _Anchor, marks: CudaMarks) -> None:
        self._event = event
        self._anchor = anchor
        self._marks = marks
        self._seconds: float | None = None

    def wait(self) -> None:
        self._marks.enter_thread()
        self._anchor.wait()  # past already, unless the current stream was another one
        self._event.synchronize()

    def seconds(self) -> float | None:
        if self._seconds is None:
            self._seconds = self._anchor.seconds_of(self._event)
        return self._seconds


def marks_for(device: torch.device | str, clock: Clock) -> MarkMaker:
    """What marks points in the work of a device: `CudaMarks` of a CUDA device, `HostMarks` of any other.

    Args:
        device: The device.
        clock: The monitor's clock.
    """
    if torch.device(device).type == "cuda":
        return CudaMarks(device, clock)
    return HostMarks(clock)
