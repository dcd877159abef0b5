"""The connections: who may open one, its requests, one at a time, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from functools import partial

from zeus_core import __version__
from zeus_core._identity import ProcessIdentity
from zeus_core.daemon._peer import Client, Ends, Peer, read_peer
from zeus_core.daemon._policy import Allotment, Policy
from zeus_core.daemon._server import Server
from zeus_core.device.remote.protocol import (
    MAX_REQUEST_BYTES,
    VERSION,
    ProtocolError,
    Request,
    decode_request,
    encode_error,
    encode_result,
)
from zeus_core.errors import DriverFaultError, PermissionDeniedError, ZeusError

_logger = logging.getLogger(__name__)

_NO_MORE_FILES_SECONDS = 0.1  # until the next try to accept a connection
_CONNECTION_ENDED = "the connection ended"
_MAX_WAITING_BYTES = 16 * MAX_REQUEST_BYTES  # of requests that came before the reply to an earlier one


class Connection:
    """A connection of a client: bytes in, requests out, one at a time; and the replies.

    One thread at a time reads from it: first that of the main loop, later that of the device it has asked for last,
    which so needs no other thread for a reply. All else is done in the main thread: its end, and what follows from it.

    Args:
        accepted: Its socket, which does not block.
        server: Answers the requests.
        number: The number of the connection, for the audit log.
        peer: The process at the other end.
        identity: The same as a process.
        allotment: The requests and connections of its user.
        ends: Watches for the end.
    """

    def __init__(
        self,
        accepted: socket.socket,
        server: Server,
        number: int,
        peer: Peer,
        identity: ProcessIdentity,
        allotment: Allotment,
        ends: Ends,
    ) -> None:
        self._socket, self._server, self._number = accepted, server, number
        self._peer, self._identity, self._allotment, self._ends = peer, identity, allotment, ends
        self._main = self._loop = asyncio.get_running_loop()  # where it ends, and where it is read
        self._client: Client | None = None  # until it greets
        self._devices: set[str] = set()  # that it has asked for
        self._received = b""
        self._is_waiting = False  # the next request waits, as its user has asked too often
        self._is_ended = False
        try:
            self._loop.add_reader(accepted, self._receive)
            ends.watch(accepted.fileno(), partial(self._end, _CONNECTION_ENDED))
            if peer.pidfd is not None:
                ends.watch(peer.pidfd, partial(self._end, "the process ended"))
        except OSError:  # the kernel has no more memory for that
            self._stop_reading()
            self._stop_watching()
            raise
        allotment.change_connection_count(1)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_MAX_WAITING_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received = self._received + data if self._received else data
        if not data:
            self._stop(_CONNECTION_ENDED)
        elif len(self._received) > _MAX_WAITING_BYTES:
            self._refuse(ProtocolError(f"more than {_MAX_WAITING_BYTES} bytes of requests came before a reply"))
        else:
            self._advance()

    def _advance(self) -> None:
        """Begin the next request, if it is here, once its user may ask."""
        if self._is_waiting or not (b"\n" in self._received or len(self._received) >= MAX_REQUEST_BYTES):
            return
        wait_seconds = self._allotment.take()
        if wait_seconds > 0.0:
            self._is_waiting = True
            self._loop.call_later(wait_seconds, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        """Begin the request whose turn it is."""
        self._is_waiting = False
        if self._is_ended or not self._received:  # stopped meanwhile
            return
        try:
            self._serve(self._take_request())
        except ProtocolError as error:
            self._refuse(error)

    def _take_request(self) -> Request:
        line, _, self._received = self._received.partition(b"\n")
        if len(line) >= MAX_REQUEST_BYTES:
            raise ProtocolError(f"a request has more than {MAX_REQUEST_BYTES} bytes")
        return decode_request(line)

    def _serve(self, request: Request) -> None:
        """Answer a request, or let the thread do so that must. Raises `ProtocolError`."""
        if request.operation == "hello":
            self._greet(request)
            self._reply(encode_result(request.number, {"version": VERSION, "daemon": __version__}))
            return
        if self._client is None:
            raise ProtocolError("the first request must be a greeting (hello)")
        loop = self._server.loop_of(request)
        if loop is not None and "device" in request.fields:
            self._devices.add(request.fields["device"])
        if loop is None or loop is self._loop:
            self._answer(self._client, request)
            return
        self._stop_reading()
        self._loop = loop
        loop.call_soon_threadsafe(self._move, self._client, request)

    def _move(self, client: Client, request: Request) -> None:
        """Read from now on in this thread, which answers a request first."""
        if self._is_ended:
            return
        try:
            self._loop.add_reader(self._socket, self._receive)
        except OSError:  # the kernel has no more memory for that
            self._stop(_CONNECTION_ENDED)
        else:
            self._answer(client, request)

    def _answer(self, client: Client, request: Request) -> None:
        if not self._is_ended:  # while a driver held up this thread: nothing is changed for who has ended
            self._reply(self._server.answer(client, request))

    def _reply(self, line: bytes) -> None:
        """Reply, without waiting: a client that has left so many replies unread that no more fit is dropped."""
        try:
            is_sent = self._socket.send(line) == len(line)
        except OSError:
            is_sent = False
        if not is_sent:
            self._stop(_CONNECTION_ENDED)
        elif self._received:
            self._loop.call_soon(self._advance)  # after a request of each other connection

    def _greet(self, request: Request) -> None:
        fields = request.fields
        if self._client is not None:
            raise ProtocolError("there was a greeting already")
        if fields["version"] != VERSION:
            raise ProtocolError(
                f"the daemon speaks version {VERSION} of its protocol, and the client version {fields['version']}: "
                f"install the same zeus-core for both (the daemon's is {__version__})"
            )
        if fields["start_ticks"] != self._identity.start_ticks:
            raise ProtocolError("the process that connected has ended")
        words = {name: fields[name] for name in ("program", "job", "token")}
        self._client = Client(self._peer, self._number, self._identity, self._peer.uid, **words)

    def _refuse(self, error: ProtocolError) -> None:
        client = self._client
        words = {} if client is None else {"program": client.program, "job": client.job}
        self._server.refuse(self._peer, error, **words, connection=self._number)
        with contextlib.suppress(OSError):
            self._socket.send(encode_error(0, error))
        self._stop("an invalid request")

    def _stop(self, why: str) -> None:
        """Read nothing more, and have the main thread end this."""
        self._stop_reading()
        self._received = b""
        self._main.call_soon_threadsafe(self._end, why)

    def _end(self, why: str) -> None:
        """End the connection and its leases, for the first reason that there is; in the main thread."""
        if self._is_ended:
            return
        self._is_ended = True
        self._stop_watching()
        if self._client is not None:
            self._server.end(self._client, tuple(self._devices), why)
        with contextlib.suppress(OSError):  # the other side has ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self._loop.call_soon_threadsafe(self._close)

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._socket)

    def _stop_watching(self) -> None:
        self._ends.forget(self._socket.fileno())
        if self._peer.pidfd is not None:
            self._ends.forget(self._peer.pidfd)
            os.close(self._peer.pidfd)

    def _close(self) -> None:
        """Close the socket, in the thread that reads from it: its number may be another's from now on."""
        if self._loop is not asyncio.get_running_loop():  # it has moved meanwhile
            self._loop.call_soon_threadsafe(self._close)
            return
        self._stop_reading()
        self._socket.close()
        self._allotment.change_connection_count(-1)


class Entrance:
    """Accepts the connections of users who may have one.

    Args:
        listener: The socket, which listens.
        policy: The rights of users.
        server: Serves the connections.
    """

    def __init__(self, listener: socket.socket, policy: Policy, server: Server) -> None:
        self._listener, self._policy, self._server = listener, policy, server
        self._allotments: dict[tuple[int, bool], Allotment] = {}  # by user; root of the machine has its own
        self._connection_count = 0
        self._ends = Ends()
        listener.setblocking(False)

    async def accept(self) -> None:
        """Accept connections until this is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except ConnectionError:
                continue
            except OSError as error:  # no more files
                _logger.error("a connection cannot be accepted: %s", error)
                await asyncio.sleep(_NO_MORE_FILES_SECONDS)
                continue
            try:
                self._open(accepted)
            except (ZeusError, OSError) as error:
                refusal = error if isinstance(error, ZeusError) else DriverFaultError(f"the daemon failed: {error}")
                with contextlib.suppress(OSError):
                    accepted.send(encode_error(0, refusal))
                accepted.close()
            await asyncio.sleep(0)  # the requests that have come meanwhile

    def _open(self, accepted: socket.socket) -> None:
        """Serve a connection. Raises `ZeusError` or `OSError` if it is refused."""
        peer = read_peer(accepted)  # before the loop has the socket, and reads from it
        allotment = self._allotments.setdefault((peer.uid, peer.is_root), Allotment(self._policy.requests_per_second))
        try:
            identity = self._identify(peer, allotment)
        except ZeusError as error:
            if peer.pidfd is not None:
                os.close(peer.pidfd)
            if allotment.wait_seconds == 0.0:  # else a flood would fill the disk
                allotment.take()
                self._server.refuse(peer, error)
            raise
        Connection(accepted, self._server, self._connection_count, peer, identity, allotment, self._ends)
        self._connection_count += 1

    def _identify(self, peer: Peer, allotment: Allotment) -> ProcessIdentity:
        """Return the process of a peer that may connect."""
        if not self._policy.is_known(peer):
            raise PermissionDeniedError(f"{peer.words} may not use the zeus-core daemon of this machine")
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
            return ProcessIdentity.of(peer.pid)
        except OSError as error:
            raise ZeusError(f"process {peer.pid} has ended") from error
