"""One connection of a client: bytes in, requests out, one at a time; and the replies."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from zeus_core.daemon._peer import Peer
from zeus_core.device.remote._protocol import MAX_REQUEST_BYTES, ProtocolError
from zeus_core.leases._process_identity import ProcessIdentity

__all__ = ["Client", "Connection"]


@dataclass(frozen=True)
class Client:
    """The process behind a connection, and what it says of itself.

    Attributes:
        identity: The process.
        uid: Its user.
        program: What it runs, in its own words.
        job: Its job in a batch system, in its own words; may be empty.
        token: Tells the programs apart that one process executes one after another.
    """

    identity: ProcessIdentity
    uid: int
    program: str
    job: str
    token: str


class Connection:
    """A socket that does not block. Requests are taken by one thread; the reply comes from any.

    Args:
        socket: The socket.
        number: The number of the connection, for the audit log.
        peer: Who is at the other end.
        identity: The same as a process.
        resume: Called, in any thread, when a reply is sent and the next request is there already.
    """

    def __init__(
        self,
        socket: socket.socket,
        number: int,
        peer: Peer,
        identity: ProcessIdentity,
        resume: Callable[[Connection], object],
    ) -> None:
        self.socket = socket
        self.number = number
        self.peer = peer
        self.identity = identity
        self.client: Client | None = None
        """What the greeting said; None before it."""
        self.is_closed = False
        """Whether it has ended."""
        self.is_paused = False
        """Whether nothing more is read, as there is no room."""
        self.is_waiting = False
        """Whether its next request waits, as its user has asked too often."""
        self.devices: set[str] = set()
        """The devices it has asked for."""
        self._resume = resume
        self._received = bytearray()
        self._is_busy = self._is_sending = False
        self._lock = threading.Lock()

    def receive(self) -> bool:
        """Read what has arrived. Returns False at the end of the connection."""
        room = 2 * MAX_REQUEST_BYTES - len(self._received)
        try:
            data = self.socket.recv(room)
        except BlockingIOError:
            return True
        except OSError:
            return False
        with self._lock:
            self._received += data
        return bool(data)

    @property
    def has_room(self) -> bool:
        """Whether more is to be read. A client that sends many requests at once waits for the replies."""
        return len(self._received) < 2 * MAX_REQUEST_BYTES

    def take_request(self) -> bytes | None:
        """Return the line of the next request; None if there is none, or the last one is still under way.

        Raises:
            ProtocolError: It is too long.
        """
        with self._lock:
            if self._is_busy or self.is_closed:
                return None
            end = self._received.find(b"\n", 0, MAX_REQUEST_BYTES)
            if end < 0:
                if len(self._received) >= MAX_REQUEST_BYTES:
                    raise ProtocolError(f"a request has more than {MAX_REQUEST_BYTES} bytes")
                return None
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            self._is_busy = True
            return line

    def reply(self, line: bytes) -> None:
        """Send a reply, after which the next request can be taken. Never raises, and never waits.

        The lock is not held meanwhile: the client's next request may be here before the call returns, and the thread
        that takes it would wait. One reply is under way at a time, as is one request.
        """
        with self._lock:
            if self.is_closed:
                return
            self._is_sending = True
        try:
            is_sent = self.socket.send(line) == len(line)
        except OSError:  # it has ended, or has left so many replies unread that no more fit
            is_sent = False
        if not is_sent:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # the loop, which waits for it, closes it
        with self._lock:
            self._is_sending = self._is_busy = False
            if self.is_closed:
                self.socket.close()
            has_more = b"\n" in self._received
        if has_more:
            self._resume(self)

    def close(self) -> None:
        """End the connection. A reply under way is sent first: the number of the socket must not get another's."""
        with self._lock:
            self.is_closed = True
            if not self._is_sending:
                self.socket.close()
