"""One connection of a client: bytes in, requests out, one at a time; and the replies."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from zeus_core._identity import ProcessIdentity
from zeus_core.daemon._allotment import Allotment
from zeus_core.daemon._peer import Peer
from zeus_core.device.remote._protocol import MAX_REQUEST_BYTES, ProtocolError, Request, decode_request

__all__ = ["Client", "Connection"]

_MAX_BYTES = 2 * MAX_REQUEST_BYTES  # that are received and not served yet


@dataclass(frozen=True)
class Client:
    """The process behind a connection, and what it says of itself.

    Attributes:
        identity: The process.
        uid: Its user.
        program: Its program, in its own words.
        job: Its job in a batch system, in its own words; may be empty.
        token: Tells the programs apart that one process executes one after another.
    """

    identity: ProcessIdentity
    uid: int
    program: str
    job: str
    token: str


class Owner(Protocol):
    """The loop that a connection belongs to."""

    def put(self, job: Callable[[], object]) -> None:
        """Do a job soon. It must not raise. Any thread may call this."""
        ...

    def release(self, connection: Connection) -> None:
        """Close the socket of a connection that has ended. Only the thread of this loop calls this."""
        ...


class Connection:
    """A socket that does not block, and what was received from it. One thread at a time calls its methods.

    Args:
        socket: The socket.
        number: The number of the connection, for the audit log.
        peer: The process at the other end.
        identity: The same as a process.
        allotment: The requests and connections of its user.
    """

    def __init__(
        self, socket: socket.socket, number: int, peer: Peer, identity: ProcessIdentity, allotment: Allotment
    ) -> None:
        self.socket = socket
        self.number = number
        self.peer = peer
        self.identity = identity
        self.allotment = allotment
        self.client: Client | None = None
        """The content of the greeting; None before it."""
        self.owner: Owner | None = None
        """The loop that serves it; None before that, and once its socket is closed."""
        self.is_ended = False
        """Whether it has ended: no request of it is served any more."""
        self.is_paused = False
        """Whether nothing more is read, as there is no room."""
        self.is_waiting = False
        """Whether its next request waits: for its turn, or as its user has asked too often."""
        self.devices: set[str] = set()
        """The devices it has asked for."""
        self._received = b""

    def receive(self) -> bool:
        """Read what has arrived. Returns False at the end of the connection."""
        try:
            data = self.socket.recv(_MAX_BYTES - len(self._received))
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._received = self._received + data if self._received else data
        return bool(data)

    @property
    def has_room(self) -> bool:
        """Whether more is to be read. A client that sends many requests at once waits for the replies."""
        return len(self._received) < _MAX_BYTES

    @property
    def has_request(self) -> bool:
        """Whether another request is there as a whole, or too much of one."""
        return b"\n" in self._received or len(self._received) >= MAX_REQUEST_BYTES

    def take_request(self) -> Request:
        """Return the next request, which must have been received as a whole.

        Raises:
            ProtocolError: It is too long, or invalid.
        """
        line, _, self._received = self._received.partition(b"\n")
        if len(line) >= MAX_REQUEST_BYTES:
            raise ProtocolError(f"a request has more than {MAX_REQUEST_BYTES} bytes")
        return decode_request(line)

    def reply(self, line: bytes) -> bool:
        """Send a reply, without waiting. False if the client has ended, or has left so many unread that no more fit."""
        try:
            return self.socket.send(line) == len(line)
        except OSError:
            return False

    def close(self) -> None:
        """Close the socket: its number may be another's from now on."""
        self.owner = None
        self.socket.close()
        self.allotment.add_connections(-1)
