"""The loop of the daemon: one thread that serves all connections, and waits for none of them."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from zeus_core import __version__
from zeus_core.daemon._connection import Client, Connection
from zeus_core.daemon._desk import Desk, Jobs
from zeus_core.daemon._peer import Peer, read_peer
from zeus_core.daemon._policy import Policy
from zeus_core.device.rapl._powercap import find_zone_folders, read_count, read_file
from zeus_core.device.remote._protocol import (
    VERSION,
    ProtocolError,
    Request,
    decode_request,
    encode_error,
    encode_result,
)
from zeus_core.errors import DriverFaultError, NoDeviceError, PermissionDeniedError, ZeusError
from zeus_core.leases._process_identity import ProcessIdentity

__all__ = ["Allotment", "Server"]

_logger = logging.getLogger(__name__)

_BURST_SECONDS = 0.1  # of the requests that a user may make in a second, so many may come at once
_NO_MORE_FILES_SECONDS = 0.1  # until the next try to accept a connection


class Allotment:
    """What one user takes of the daemon: connections, and requests per second.

    Args:
        requests_per_second: As many are served on average.
        now: Tells the time in seconds.
    """

    def __init__(self, requests_per_second: int, now: Callable[[], float] = time.monotonic) -> None:
        self.connection_count = 0
        """How many connections the user has."""
        self._rate = requests_per_second
        self._now = now
        self._spent_until = -1e18  # each request moves this on by its share of a second

    def wait_seconds(self) -> float:
        """Return how long the next request has to wait."""
        return max(0.0, self._spent_until - self._now() - _BURST_SECONDS)

    def spend(self) -> None:
        """Count a request."""
        self._spent_until = max(self._spent_until, self._now()) + 1.0 / self._rate


class Server:
    """Serves connections until it is told to stop.

    Args:
        listener: The socket, which listens.
        policy: Who may do what.
        desks: The desk of each device, by UUID.
        powercap_root: Where the energy counters of CPUs are.
    """

    def __init__(self, listener: socket.socket, policy: Policy, desks: Mapping[str, Desk], powercap_root: Path) -> None:
        self._listener = listener
        self._policy = policy
        self._desks = desks
        self._zones = {folder.name: folder / "energy_uj" for folder in find_zone_folders(powercap_root)}
        self._energy_jobs = Jobs("zeus-core energy", lambda: None)
        self._selector = selectors.DefaultSelector()
        self._allotments: dict[int, Allotment] = defaultdict(lambda: Allotment(policy.requests_per_second))
        self._connection_count = 0
        self._turns: deque[Connection] = deque()  # connections with requests that were received
        self._waiting: list[tuple[float, Connection]] = []  # until a time, as their user has spent the allotment
        self._is_stopped = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer, listener):
            end.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._drain)

    def serve(self) -> None:
        """Serve until `stop`; then restore nothing: that is for who owns the desks."""
        while not self._is_stopped:
            for key, _ in self._selector.select(self._timeout_seconds()):
                key.data()
            self._end_waits()
            for _ in range(len(self._turns)):  # one request of each, so that none delays the others
                self._advance(self._turns.popleft())

    def stop(self) -> None:
        """End `serve` soon. For signal handlers and other threads."""
        self._is_stopped = True
        self._wake()

    def _timeout_seconds(self) -> float | None:
        if self._turns:
            return 0.0
        return max(0.0, min(until for until, _ in self._waiting) - time.monotonic()) if self._waiting else None

    def _end_waits(self) -> None:
        if self._waiting:
            now = time.monotonic()
            due = [connection for until, connection in self._waiting if until <= now]
            self._waiting = [entry for entry in self._waiting if entry[0] > now]
            for connection in due:
                connection.is_waiting = False
            self._turns.extend(due)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is about to wake
            self._wake_writer.send(b"\0")

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)

    def _resume(self, connection: Connection) -> None:
        self._turns.append(connection)
        self._wake()

    # Connections

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # no more files
            _logger.error("a connection cannot be accepted: %s", error)
            time.sleep(_NO_MORE_FILES_SECONDS)
            return
        accepted.setblocking(False)
        try:
            self._open(accepted)
        except (ZeusError, OSError) as error:
            refusal = error if isinstance(error, ZeusError) else DriverFaultError(f"the daemon failed: {error}")
            with contextlib.suppress(OSError):
                accepted.send(encode_error(0, refusal))
            accepted.close()

    def _open(self, accepted: socket.socket) -> None:
        """Take a connection in. Raises `ZeusError` or `OSError` if it is refused."""
        peer = read_peer(accepted)
        try:
            connection = Connection(accepted, self._connection_count, peer, self._identify(peer), self._resume)
            self._selector.register(accepted, selectors.EVENT_READ, partial(self._receive, connection))
        except BaseException:
            if peer.pidfd is not None:
                os.close(peer.pidfd)
            raise
        if peer.pidfd is not None:
            ended = partial(self._close, connection, "the process ended")
            self._selector.register(peer.pidfd, selectors.EVENT_READ, ended)
        self._connection_count += 1
        self._allotments[peer.uid].connection_count += 1

    def _identify(self, peer: Peer) -> ProcessIdentity:
        """Return the process of a peer that may connect."""
        if not self._policy.is_known(peer):
            raise PermissionDeniedError(f"user {peer.uid} may not use the zeus-core daemon of this machine")
        if self._allotments[peer.uid].connection_count >= self._policy.connections_per_user:
            raise DriverFaultError(
                f"user {peer.uid} has {self._policy.connections_per_user} connections to the zeus-core daemon, and may "
                "not have more"
            )
        if peer.pid == 0:
            raise PermissionDeniedError(
                "the zeus-core daemon cannot see this process: it runs in another PID namespace; run the daemon on the "
                "host, or the container with its PID namespace (docker run --pid=host, hostPID: true)"
            )
        try:
            identity = ProcessIdentity.of(peer.pid)
        except OSError as error:
            raise ZeusError(f"process {peer.pid} has ended") from error
        return identity

    def _receive(self, connection: Connection) -> None:
        if connection.is_closed:  # by the event before this one
            return
        if not connection.receive():
            self._close(connection, "the connection ended")
            return
        if not connection.has_room:  # a client that sends many requests at once: it waits for the replies
            self._selector.unregister(connection.socket)
            connection.is_paused = True
        self._advance(connection)

    def _close(self, connection: Connection, why: str) -> None:
        """End a connection and its leases."""
        if connection.is_closed:
            return
        if not connection.is_paused:
            self._selector.unregister(connection.socket)
        connection.close()
        pidfd = connection.peer.pidfd
        if pidfd is not None:
            self._selector.unregister(pidfd)
            os.close(pidfd)
        allotment = self._allotments[connection.peer.uid]
        allotment.connection_count -= 1
        for uuid in connection.devices:
            self._desks[uuid].end(connection, why)

    # Requests

    def _advance(self, connection: Connection) -> None:
        """Serve one request of a connection, if there is one, none is under way, and its user may ask now."""
        if connection.is_closed or connection.is_waiting:
            return
        allotment = self._allotments[connection.peer.uid]
        wait_seconds = allotment.wait_seconds()
        if wait_seconds > 0.0:
            connection.is_waiting = True
            self._waiting.append((time.monotonic() + wait_seconds, connection))
            return
        try:
            line = connection.take_request()
            if line is not None:
                allotment.spend()
                self._serve(connection, decode_request(line))
        except ProtocolError as error:
            connection.reply(encode_error(0, error))
            self._close(connection, "a request that is none")
            return
        if connection.is_paused and connection.has_room:
            connection.is_paused = False
            self._selector.register(connection.socket, selectors.EVENT_READ, partial(self._receive, connection))

    def _serve(self, connection: Connection, request: Request) -> None:
        """Answer a request, or let the thread of its device do so. Raises `ProtocolError`."""
        if request.operation == "hello":
            connection.client = _greet(connection, request)
            connection.reply(encode_result(request.number, {"version": VERSION, "daemon": __version__}))
        elif connection.client is None:
            raise ProtocolError("the first request must be a greeting (hello)")
        elif request.operation == "list":
            connection.reply(encode_result(request.number, self._list()))
        elif request.operation == "energy":
            self._energy_jobs.put(partial(self._read_energy, connection, request))
        elif (desk := self._desks.get(request.fields["device"])) is not None:
            connection.devices.add(request.fields["device"])
            desk.serve(connection, connection.client, request)
        else:
            known = ", ".join(self._desks) or "none"
            error = NoDeviceError(f"the daemon has no device {request.fields['device']}; it has {known}")
            connection.reply(encode_error(request.number, error))

    def _list(self) -> dict[str, Any]:
        entries = [entry for desk in self._desks.values() for entry in desk.entries()]
        return {
            "devices": list(self._desks),
            "leases": [
                {
                    "device": entry.device_uuid,
                    "knob": entry.knob,
                    "original": entry.original,
                    "value": entry.values[-1] if entry.values else None,
                    "pid": entry.owner.pid,
                    "uid": entry.uid,
                    "program": entry.program,
                    "job": entry.job,
                    "since_seconds": entry.since_seconds,
                }
                for entry in entries
            ],
        }

    def _read_energy(self, connection: Connection, request: Request) -> None:
        """Read an energy counter of a CPU, in the thread for that: the kernel may take its time."""
        zone = request.fields["zone"]
        try:
            self._policy.check_cpu_energy(connection.peer)
            if zone not in self._zones:
                raise NoDeviceError(f"this machine has no energy counter {zone}")
            result = {"microjoules": read_count(self._zones[zone], read_file)}
        except ZeusError as error:
            connection.reply(encode_error(request.number, error))
        else:
            connection.reply(encode_result(request.number, result))


def _greet(connection: Connection, request: Request) -> Client:
    """Return what a client says of itself. Raises `ProtocolError`."""
    fields = request.fields
    if connection.client is not None:
        raise ProtocolError("there was a greeting already")
    if fields["version"] != VERSION:
        raise ProtocolError(
            f"the daemon speaks version {VERSION} of its protocol, and the client version {fields['version']}: install "
            f"the same zeus-core for both (the daemon's is {__version__})"
        )
    if fields["start_ticks"] != connection.identity.start_ticks:
        raise ProtocolError("the process that connected has ended")
    return Client(connection.identity, connection.peer.uid, fields["program"], fields["job"], fields["token"])
