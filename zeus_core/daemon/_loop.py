"""A thread that serves connections, and waits for none of them."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from zeus_core.daemon._connection import Connection
from zeus_core.device.remote._protocol import ProtocolError, Request, encode_error

__all__ = ["House", "Loop"]

_logger = logging.getLogger(__name__)

_IDLE_SECONDS = 10.0  # between the tries to restore a device that failed: a driver that hangs needs a reset by hand


class House(Protocol):
    """The common part of the loops."""

    def loop_for(self, request: Request) -> Loop | None:
        """Return the loop whose thread must answer a request; None if any may."""
        ...

    def answer(self, connection: Connection, request: Request) -> bytes:
        """Return the reply to a request.

        Raises:
            ProtocolError: The request is not allowed at this time.
        """
        ...

    def refuse(self, connection: Connection, error: ProtocolError) -> None:
        """Keep on record that a connection has sent an invalid request. Any thread may call this."""
        ...

    def end(self, connection: Connection, why: str) -> None:
        """End a connection and its leases soon. Any thread may call this."""
        ...


class Loop:
    """Serves some connections, one request of each in turn, in one thread.

    A connection belongs to the loop that must answer its latest request, and only the thread of that loop calls it: the
    request is read, served and answered without another thread. A driver that hangs holds up the loop of its device,
    and no other.

    Args:
        house: Answers the requests.
        name: The name of the thread.
        idle: Called every 10 s, when there is nothing else to do.
    """

    def __init__(self, house: House, name: str, idle: Callable[[], object] | None = None) -> None:
        self.name = name
        """The name of the thread."""
        self.thread = 0
        """Its identifier, once it runs."""
        self.passes = 0
        """How often it has looked for something to do."""
        self.is_stopped = False
        """Whether it is to end, or has ended."""
        self._house = house
        self._idle = idle
        self._idle_at = time.monotonic() + _IDLE_SECONDS
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[], object]] = {}  # what to call, by the descriptor that can be read
        self._jobs: deque[Callable[[], object]] = deque()
        self._turns: deque[Connection] = deque()  # connections with requests that were received
        self._waiting: list[tuple[float, Connection]] = []  # until a time, as their user has spent the allotment
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self.watch(self._wake_reader.fileno(), self._drain)
        self._thread = threading.Thread(target=self._run_or_exit, name=name, daemon=True)

    def start(self) -> None:
        """Run in a thread of its own."""
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for the end of that thread. Returns whether it has ended."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def run(self) -> None:
        """Serve until `stop`."""
        self.thread = threading.get_ident()
        while not self.is_stopped:
            events = self._epoll.poll(self._timeout_seconds())
            self.passes += 1
            for descriptor, _ in events:
                ready = self._ready.get(descriptor)
                if ready is not None:  # else it was left alone since
                    ready()
            while self._jobs and not self.is_stopped:
                self._jobs.popleft()()
            if self._waiting:
                self._end_waits()
            for _ in range(len(self._turns)):  # one request of each, so that none delays the others
                connection = self._turns.popleft()
                connection.is_waiting = False
                self._advance(connection)
            if self._idle is not None and not (self._jobs or self._turns) and time.monotonic() >= self._idle_at:
                self._idle()
                self._idle_at = time.monotonic() + _IDLE_SECONDS

    def _run_or_exit(self) -> None:
        """Serve; after a defect of ours, end the daemon: the one that is started anew restores the device first."""
        try:
            self.run()
        except BaseException:
            _logger.exception("the daemon ends, and restores everything when it is started anew")
            os._exit(1)

    def stop(self) -> None:
        """End `run` soon. Signal handlers and any thread may call this."""
        self.is_stopped = True
        self.wake()

    def put(self, job: Callable[[], object]) -> None:
        """Do a job soon. It must not raise. Any thread may call this."""
        self._jobs.append(job)
        self.wake()

    def wake(self) -> None:
        """Let the thread look for something to do. Any thread may call this."""
        with contextlib.suppress(BlockingIOError):  # it is about to wake
            self._wake_writer.send(b"\0")

    def watch(self, descriptor: int, ready: Callable[[], object]) -> None:
        """Call a function whenever a descriptor can be read. Called before `run`, or in its thread."""
        self._ready[descriptor] = ready
        self._epoll.register(descriptor, select.EPOLLIN)

    def adopt(self, connection: Connection) -> None:
        """Serve a connection. Only the thread of this loop calls this."""
        connection.owner = self
        if not connection.is_paused:
            self._read(connection)

    def release(self, connection: Connection) -> None:
        """Close the socket of a connection that has ended. Only the thread of this loop calls this."""
        if connection.owner is self:
            self._pause(connection)
            connection.close()
        elif connection.owner is not None:  # it was handed over meanwhile
            connection.owner.put(partial(connection.owner.release, connection))

    def _timeout_seconds(self) -> float | None:
        if self._jobs or self._turns:
            return 0.0
        ends = [until for until, _ in self._waiting] + ([] if self._idle is None else [self._idle_at])
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _end_waits(self) -> None:
        now = time.monotonic()
        due = [connection for until, connection in self._waiting if until <= now]
        self._waiting = [entry for entry in self._waiting if entry[0] > now]
        self._turns.extend(due)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)

    def _read(self, connection: Connection) -> None:
        connection.is_paused = False
        self.watch(connection.socket.fileno(), partial(self._receive, connection))

    def _pause(self, connection: Connection) -> None:
        if self._ready.pop(connection.socket.fileno(), None) is not None:
            self._epoll.unregister(connection.socket.fileno())

    def _receive(self, connection: Connection) -> None:
        if not connection.receive():
            self._end(connection, "the connection ended")
            return
        if not connection.has_room:  # a client that sends many requests at once: it waits for the replies
            self._pause(connection)
            connection.is_paused = True
        self._advance(connection)

    def _advance(self, connection: Connection) -> None:
        """Serve the next request of a connection, if it is here and its user may ask now."""
        if connection.is_ended or connection.is_waiting:
            return
        if not connection.has_request:
            return
        wait_seconds = connection.allotment.spend()
        if wait_seconds > 0.0:
            connection.is_waiting = True
            self._waiting.append((time.monotonic() + wait_seconds, connection))
            return
        try:
            request = connection.take_request()
        except ProtocolError as error:
            self._refuse(connection, error)
            return
        loop = self._house.loop_for(request)
        if loop is None or loop is self:
            self._serve(connection, request)
        else:
            self._hand_over(connection, request, loop)

    def _hand_over(self, connection: Connection, request: Request, loop: Loop) -> None:
        """Give a connection to the loop that must answer its request."""
        self._pause(connection)
        connection.owner = loop
        loop.put(partial(loop._take_over, connection, request))

    def _take_over(self, connection: Connection, request: Request) -> None:
        if not connection.is_ended:
            self.adopt(connection)
            self._serve(connection, request)

    def _serve(self, connection: Connection, request: Request) -> None:
        try:
            reply = self._house.answer(connection, request)
        except ProtocolError as error:
            self._refuse(connection, error)
            return
        if not connection.reply(reply):
            self._end(connection, "the connection ended")
            return
        if connection.is_paused and connection.has_room:
            self._read(connection)
        if connection.has_request:
            connection.is_waiting = True
            self._turns.append(connection)

    def _refuse(self, connection: Connection, error: ProtocolError) -> None:
        self._house.refuse(connection, error)
        connection.reply(encode_error(0, error))
        self._end(connection, "an invalid request")

    def _end(self, connection: Connection, why: str) -> None:
        self._pause(connection)
        connection.is_ended = True
        self._house.end(connection, why)
