"""The process at the other end of a connection: as the kernel knows it, what it says of itself, and its end."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from zeus_core._identity import ProcessIdentity
from zeus_core.errors import ZeusError

# <asm-generic/socket.h>; Python has no names for them.
_SO_PEERGROUPS, _SO_PEERPIDFD = 59, 77
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_GROUP_BYTES = 4
_GROUPS_BYTES = 1024  # as much as Python reads: 256 groups; Linux would allow more
_INITIAL_USER_NAMESPACE = "user:[4026531837]"  # PROC_USER_INIT_INO of Linux: that of the machine itself
_CAP_SYS_ADMIN = 1 << 21  # what the driver asks for


@dataclass(frozen=True)
class Peer:
    """A process at the time at which it connected.

    Attributes:
        pid: Its number in the namespace of this process; 0 if it is in one that cannot be seen from here.
        uid: Its user.
        gids: Its groups.
        pidfd: A descriptor that becomes readable when the process ends, even if another has its number by
            then; the holder closes it. None where the kernel names no process.
        is_root: Whether it is root of the machine, not only of a container: it could do everything without the daemon.
    """

    pid: int
    uid: int
    gids: frozenset[int]
    pidfd: int | None = None
    is_root: bool = False

    @property
    def words(self) -> str:
        """The user in words."""
        is_other = self.uid == 0 and not self.is_root
        return f"user {self.uid}{', who is not seen to be root of the machine,' * is_other}"


@dataclass(frozen=True)
class Client:
    """A process that has greeted, by one of its connections. Equal for all connections of the same program.

    Attributes:
        peer: The process as the kernel knows it.
        connection: The number of the connection, for the audit log.
        identity: The process.
        uid: Its user.
        program: Its program, in its own words.
        job: Its job in a batch system, in its own words; may be empty.
        token: Tells the programs apart that one process executes one after another.
    """

    peer: Peer = field(compare=False)
    connection: int = field(compare=False)
    identity: ProcessIdentity
    uid: int
    program: str
    job: str
    token: str


class Ends:
    """Watches for the ends of connections and of their processes, from the main loop, also while drivers hang.

    It reads nothing that a connection sends: another loop can do so meanwhile.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], object]] = {}  # by descriptor
        asyncio.get_running_loop().add_reader(self._epoll, self._find)

    def watch(self, descriptor: int, end: Callable[[], object]) -> None:
        """Call a function when the other side of a socket, or a process, ends.

        Args:
            descriptor: The socket, or the descriptor of a process.
            end: The function; it is called until it calls `forget`.

        Raises:
            OSError: The kernel has no more memory.
        """
        is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        self._epoll.register(descriptor, select.EPOLLRDHUP if is_socket else select.EPOLLIN)
        self._watched[descriptor] = end

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no more, before it is closed."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def _find(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            if descriptor in self._watched:  # and not forgotten with the one before
                self._watched[descriptor]()


def read_peer(connection: socket.socket) -> Peer:
    """Read who is at the other end of a unix socket.

    Raises:
        ZeusError: The process has already ended.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(credentials)
    gids = frozenset({gid, *_read_groups(connection)})
    pidfd = _open_peer(connection)
    if pidfd is not None:
        return Peer(pid, uid, gids, pidfd, uid == 0 and _is_root_of_machine(pid, pidfd))
    return Peer(pid, uid, gids, _open_by_number(connection, pid))  # another may have its number: it is not root


def _is_root_of_machine(pid: int, pidfd: int) -> bool:
    """Return whether a process of user 0 has CAP_SYS_ADMIN in the initial user namespace.

    False where that cannot be read: without CAP_SYS_PTRACE the kernel shows no namespace of a process with more
    capabilities than this one. The map of user ids could be read, but a container can have the same.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        has_right = bool(int(status.partition("\nCapEff:")[2].split()[0], 16) & _CAP_SYS_ADMIN)
        is_of_machine = str(Path(f"/proc/{pid}/ns/user").readlink()) == _INITIAL_USER_NAMESPACE
    except (OSError, ValueError, IndexError):
        return False
    end = select.poll()
    end.register(pidfd, select.POLLIN)
    return has_right and is_of_machine and not end.poll(0)  # else another process may have had its number meanwhile


def _read_groups(connection: socket.socket) -> tuple[int, ...]:
    """Read the groups the process had when it connected. Unlike a look-up of the user, this never waits."""
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:  # there are more: then the process has the rights of its first group and of its user
        return ()
    return struct.unpack(f"{len(packed) // _GROUP_BYTES}I", packed)


def _open_peer(connection: socket.socket) -> int | None:
    """Open the process that connected; never one that has got its number since. None before Linux 6.5."""
    try:
        (pidfd,) = struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))
    except OSError:
        return None
    os.set_inheritable(pidfd, False)
    return int(pidfd)


def _open_by_number(connection: socket.socket, pid: int) -> int | None:
    if pid == 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise ZeusError(f"process {pid} has ended") from error
    # If another process has got the number, the one that connected has ended, and with it its connection; unless a
    # child has inherited it: the greeting, which names the time at which the process was started, finds that.
    if _is_closed(connection):
        os.close(pidfd)
        raise ZeusError(f"process {pid} has ended")
    return pidfd


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
