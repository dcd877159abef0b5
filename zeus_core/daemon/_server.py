"""The connections of the daemon: who may open one, which thread serves it, and what its end means."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from zeus_core import __version__
from zeus_core._identity import ProcessIdentity
from zeus_core.daemon._allotment import Allotment
from zeus_core.daemon._audit import AuditLog
from zeus_core.daemon._connection import Client, Connection
from zeus_core.daemon._desk import Desk
from zeus_core.daemon._loop import Loop
from zeus_core.daemon._peer import Peer, read_peer
from zeus_core.daemon._policy import NotAllowedError, Policy
from zeus_core.device.rapl._powercap import find_zone_folders, read_count, read_file
from zeus_core.device.remote._protocol import (
    VERSION,
    ProtocolError,
    Request,
    encode_error,
    encode_members,
    encode_result,
)
from zeus_core.errors import (
    DeviceHeldError,
    DriverFaultError,
    NoDeviceError,
    PermissionDeniedError,
    UsageError,
    ZeusError,
)

__all__ = ["Server"]

_logger = logging.getLogger(__name__)

_NO_MORE_FILES_SECONDS = 0.1  # until the next try to accept a connection
_REFUSALS = (UsageError, NotAllowedError, DeviceHeldError, NoDeviceError)


class Server:
    """Serves connections until it is told to stop.

    Each device has a loop in a thread of its own, and so have the energy counters of CPUs, which may take their time.
    The loop of this thread takes new connections in, greets them, and notices at once when one ends, even
    while the thread that serves it is busy.

    Args:
        listener: The socket, which listens.
        policy: The rights of users.
        audit: The log of refused requests; the desks log the others.
        desks: The desk of each device, by UUID.
        powercap_root: Where the energy counters of CPUs are.
    """

    def __init__(
        self,
        listener: socket.socket,
        policy: Policy,
        audit: AuditLog,
        desks: Mapping[str, Desk],
        powercap_root: Path,
    ) -> None:
        self._listener = listener
        self._policy = policy
        self._audit = audit
        self._desks = desks
        self._zones = {folder.name: folder / "energy_uj" for folder in find_zone_folders(powercap_root)}
        self._loop = Loop(self, "zeus-core front")
        self._energy_loop = Loop(self, "zeus-core energy")
        self._loops = {uuid: Loop(self, f"zeus-core {uuid[:12]}", desk.retry) for uuid, desk in desks.items()}
        self._allotments: dict[int, Allotment] = {}  # by user
        self._connection_count = 0
        self._ends = select.epoll()  # of all connections and of their processes
        self._ending: dict[int, tuple[Connection, str]] = {}  # by descriptor
        listener.setblocking(False)
        self._loop.watch(listener.fileno(), self._accept)
        self._loop.watch(self._ends.fileno(), self._note_ends)

    @property
    def watched_loops(self) -> list[Loop]:
        """The loops that restoring needs: those of the devices, and the one that notices ends."""
        return [self._loop, *self._loops.values()]

    def serve(self) -> None:
        """Serve until `stop`."""
        for loop in (self._energy_loop, *self._loops.values()):
            loop.start()
        self._loop.run()

    def stop(self) -> None:
        """End `serve` soon. Signal handlers and other threads may call this."""
        self._loop.stop()

    def restore(self, until: float) -> list[str]:
        """Stop serving, and restore everything. Returns the devices that were late.

        Args:
            until: When to stop waiting, as a time of `time.monotonic()`.
        """
        for uuid, loop in self._loops.items():
            loop.put(partial(_end_all, self._desks[uuid], loop))
        return [uuid for uuid, loop in self._loops.items() if not loop.join(until - time.monotonic())]

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
        allotment = self._allotments.setdefault(peer.uid, Allotment(self._policy.requests_per_second))
        try:
            connection = Connection(accepted, self._connection_count, peer, self._identify(peer, allotment), allotment)
            self._ends.register(accepted.fileno(), select.EPOLLRDHUP)
        except BaseException as error:
            if peer.pidfd is not None:
                os.close(peer.pidfd)
            if isinstance(error, ZeusError) and allotment.spend() == 0.0:  # else a flood would fill the disk
                self._note_refusal(peer, error)
            raise
        self._ending[accepted.fileno()] = (connection, "the connection ended")
        if peer.pidfd is not None:
            self._ends.register(peer.pidfd, select.EPOLLIN)
            self._ending[peer.pidfd] = (connection, "the process ended")
        self._connection_count += 1
        allotment.add_connections(1)
        self._loop.adopt(connection)

    def _identify(self, peer: Peer, allotment: Allotment) -> ProcessIdentity:
        """Return the process of a peer that may connect."""
        if not self._policy.is_known(peer):
            raise PermissionDeniedError(f"user {peer.uid} may not use the zeus-core daemon of this machine")
        if allotment.connection_count >= self._policy.connections_per_user:
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

    def _note_ends(self) -> None:
        for descriptor, _ in self._ends.poll(0):
            ending = self._ending.get(descriptor)
            if ending is not None:  # else the other descriptor of the connection was noted just before
                self._end(*ending)

    def end(self, connection: Connection, why: str) -> None:
        """End a connection and its leases soon. Any thread may call this."""
        self._loop.put(partial(self._end, connection, why))

    def _end(self, connection: Connection, why: str) -> None:
        pidfd = connection.peer.pidfd
        if connection.socket.fileno() not in self._ending:  # it has ended in two ways
            return
        connection.is_ended = True
        for descriptor in (connection.socket.fileno(), *(() if pidfd is None else (pidfd,))):
            del self._ending[descriptor]
            self._ends.unregister(descriptor)
        if pidfd is not None:
            os.close(pidfd)
        for uuid in list(connection.devices):  # another thread may add one, and then serves it no more
            self._loops[uuid].put(partial(self._desks[uuid].end, connection, why))
        owner = connection.owner
        if owner is not None:
            owner.put(partial(owner.release, connection))

    # Requests

    def refuse(self, connection: Connection, error: ZeusError, request: Request | None = None) -> None:
        """Write a refused request to the audit log. Any thread may call this."""
        client = connection.client
        words: dict[str, Any] = {} if client is None else {"program": client.program, "job": client.job}
        words["connection"] = connection.number
        if request is not None:
            words.update({"request": request.operation, **request.fields})
        self._note_refusal(connection.peer, error, **words)

    def _note_refusal(self, peer: Peer, error: ZeusError, **words: Any) -> None:
        fields = {"pid": peer.pid, "uid": peer.uid, **words, "because": str(error)}
        self._audit.note("refused", encode_members(fields))

    def loop_for(self, request: Request) -> Loop | None:
        """Return the loop whose thread must answer a request; None if any may."""
        if request.operation == "energy":
            return self._energy_loop
        return self._loops.get(request.fields.get("device", ""))

    def answer(self, connection: Connection, request: Request) -> bytes:
        """Return the reply to a request. Raises `ProtocolError`."""
        try:
            return self._reply(connection, request)
        except ProtocolError:
            raise
        except ZeusError as error:
            if isinstance(error, _REFUSALS):
                self.refuse(connection, error, request)
            return encode_error(request.number, error)
        except Exception as error:  # a defect of ours must not end the thread of a device that is to be restored
            return encode_error(request.number, DriverFaultError(f"the daemon failed: {error!r}"))

    def _reply(self, connection: Connection, request: Request) -> bytes:
        number, operation, fields = request
        if operation == "hello":
            connection.client = _greet(connection, request)
            return encode_result(number, {"version": VERSION, "daemon": __version__})
        if connection.client is None:
            raise ProtocolError("the first request must be a greeting (hello)")
        if operation == "list":
            return encode_result(number, self._list())
        if operation == "energy":
            return encode_result(number, self._read_energy(connection, request))
        desk = self._desks.get(fields["device"])
        if desk is None:
            has = ", ".join(self._desks) or "none"
            raise NoDeviceError(f"the daemon has no device {fields['device']}; it has {has}")
        connection.devices.add(fields["device"])
        return desk.answer(connection, connection.client, request)

    def _list(self) -> dict[str, Any]:
        held = [lease for desk in self._desks.values() for lease in desk.held()]
        return {
            "devices": list(self._desks),
            "leases": [
                {
                    "device": entry.device_uuid,
                    "knob": entry.knob,
                    "original": entry.original,
                    "value": value,
                    "pid": entry.owner.pid,
                    "uid": entry.uid,
                    "program": entry.program,
                    "job": entry.job,
                    "since_seconds": entry.since_seconds,
                }
                for entry, value in held
            ],
        }

    def _read_energy(self, connection: Connection, request: Request) -> dict[str, Any]:
        zone = request.fields["zone"]
        self._policy.check_cpu_energy(connection.peer)
        if zone not in self._zones:
            raise NoDeviceError(f"this machine has no energy counter {zone}")
        return {"microjoules": read_count(self._zones[zone], read_file)}


def _end_all(desk: Desk, loop: Loop) -> None:
    desk.end_all()
    loop.stop()


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
