"""Messages to systemd: that the daemon is ready, that it ends, and while it runs, that its threads are alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from zeus_core.daemon._worker import Worker
from zeus_core.settings.ledger import Ledger

_logger = logging.getLogger(__name__)

_ANSWERS = 4  # in each period of the watchdog: one that a busy machine delays does no harm


class DriverCalls:
    """The threads that are in a call of a driver now, or wait for another process that may be in one."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def __contains__(self, thread: int) -> bool:
        return thread in self._threads

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Count this thread among them in a block."""
        thread = threading.get_ident()
        self._threads.add(thread)
        try:
            yield
        finally:
            self._threads.discard(thread)


class WatchedGpu:
    """A `Gpu` each call of which is counted.

    Args:
        gpu: Makes the calls.
        calls: Counts them.
    """

    def __init__(self, gpu: object, calls: DriverCalls) -> None:
        self._gpu = gpu
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._gpu, name)
        if not callable(found):
            return found

        def call(*arguments: object) -> Any:
            with self._calls.entered():
                return found(*arguments)

        setattr(self, name, call)  # the next time it is found at once
        return call


class WatchedLedger(Ledger):
    """A ledger whose waits for locks are counted: a process that holds one may be in a call of its driver.

    Args:
        folder: See `Ledger`.
        calls: Counts them.
    """

    def __init__(self, folder: str, calls: DriverCalls) -> None:
        super().__init__(folder)
        self._calls = calls

    @contextlib.contextmanager
    def locked(self, device_uuid: str) -> Iterator[None]:
        """Keep other processes from claiming or restoring a device: see `Ledger.locked`."""
        with contextlib.ExitStack() as lock:
            with self._calls.entered():
                lock.enter_context(super().locked(device_uuid))
            yield


class Watchdog:
    """Answers systemd's watchdog, from the loop, while every thread is alive: it moves, or is in a call of the driver.

    Without an answer systemd kills the daemon, and starts it anew. That restores everything, which a thread that is
    stuck, a loop that is, or a process that is stopped, would not.

    Args:
        workers: The threads of the devices.
        calls: The threads that are in a call of the driver, which may hang.
    """

    def __init__(self, workers: Iterable[Worker], calls: DriverCalls) -> None:
        self._calls = calls
        self._job_counts = dict.fromkeys(workers, -1)  # when they were looked at last
        self._missed = 0

    def start(self) -> None:
        """Answer from now on, if systemd watches this process."""
        seconds = _watchdog_seconds()
        if seconds is not None:
            self._answer(seconds / _ANSWERS)

    def stuck(self) -> list[str]:
        """Return the names of the threads that have not moved since the last call, and let all of them move."""
        names = []
        for worker, count in self._job_counts.items():
            if worker.job_count != count:
                self._job_counts[worker] = worker.job_count
                worker.put(_move)
            elif not (worker.is_ended or worker.thread in self._calls):
                names.append(worker.name)
        return names

    def _answer(self, interval_seconds: float) -> None:
        stuck = self.stuck()
        self._missed = self._missed + 1 if stuck else 0
        if not stuck:
            notify_systemd("WATCHDOG=1", socket.MSG_DONTWAIT)  # the loop must not wait for systemd
        elif self._missed == _ANSWERS // 2:
            _logger.error("%s: stuck, so that systemd is going to start the daemon anew", ", ".join(stuck))
        asyncio.get_running_loop().call_later(interval_seconds, self._answer, interval_seconds)


def _move() -> None:
    """Do nothing, as the job of a thread that is to show that it is alive."""


def notify_systemd(state: str, flags: int = 0) -> None:
    """Send systemd a state of this service (sd_notify), if it is one of its own."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(state.encode(), flags, "\0" + name[1:] if name.startswith("@") else name)


def _watchdog_seconds() -> float | None:
    """Return after how long without an answer systemd kills this process (sd_watchdog_enabled); None if never."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(os.environ["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None
