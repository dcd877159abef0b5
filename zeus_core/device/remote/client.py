"""The client of the daemon: one connection, which is a lease as soon as something is changed by it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zeus_core._identity import ProcessIdentity, job_id, printable, program_name, program_token
from zeus_core.device.gpu import PowerRange
from zeus_core.device.remote.protocol import (
    MAX_REPLY_BYTES,
    VERSION,
    ProtocolError,
    decode_reply,
    encode_request,
    socket_path,
)
from zeus_core.errors import DeviceError, DriverFaultError, PermissionDeniedError, ZeusError
from zeus_core.process.deadline import CALL_SECONDS, no_answer
from zeus_core.process.lock import ProcessLock

# Who has a change made waits for `CALL_SECONDS`: the error of a daemon that does not answer comes before it gives up.
_ANSWER_SECONDS = CALL_SECONDS - 0.1
# How long the kernel waits for the other side: a struct timeval, of seconds and microseconds.
_PATIENCE = struct.pack("ll", *divmod(round(_ANSWER_SECONDS * 1e6), 1_000_000))
_RECONNECT_SECONDS = 0.02  # between two tries: systemd starts a daemon that crashed anew after 0.1 s


class DaemonConnection:
    """A connection to the daemon, opened by the first request. It may be used by several threads.

    It ends with `close`, with this object and with the process; not with a child that was forked, which has none.
    Requests that meet a daemon that is being restarted are made again once it is back, within their deadline.

    Args:
        path: The socket; None for the usual one, or the one that `ZEUS_DAEMON_SOCKET` names.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path: str = path or socket_path()
        """The path of the socket."""
        self._socket: socket.socket | None = None
        self._process_id: int | None = None  # which has opened the socket
        self._received = b""
        self._count = 0
        self._lock = ProcessLock()
        _connections.add(self)

    def ask(
        self, operation: str, fields: Mapping[str, Any] = MappingProxyType({}), seconds: float = _ANSWER_SECONDS
    ) -> dict[str, Any]:
        """Make a request, and return the result.

        Args:
            operation: A key of `_FIELDS` in `protocol.py`.
            fields: The fields of the request.
            seconds: How long to wait.

        Raises:
            PermissionDeniedError: There is no daemon, or it refuses; the message says what an administrator can do.
            DriverFaultError: It does not answer in time.
            DeviceError: It could not do what was asked.
            UsageError: The request asks for something that the device does not have.
        """
        until = time.monotonic() + seconds
        with self._lock:
            is_new = self._process_id != os.getpid()
            while True:
                try:
                    if self._socket is None or self._process_id != os.getpid():
                        self._open(until)
                    return self._exchange(operation, fields, until)
                except TimeoutError:
                    raise DriverFaultError(f"the zeus-core daemon: {no_answer(seconds)}") from None
                except (OSError, EOFError) as error:
                    self._drop()
                    if is_new:
                        raise self._unreachable(error) from error
                    if time.monotonic() + _RECONNECT_SECONDS > until:
                        raise DriverFaultError(f"the zeus-core daemon at {self.path} has ended: {error}") from error
                    time.sleep(_RECONNECT_SECONDS)
                except ProtocolError as error:
                    self._drop()
                    raise DeviceError(f"the zeus-core daemon at {self.path}: {error}") from error

    def is_open(self) -> bool:
        """Tell whether the daemon is still at the other end: it has neither ended nor closed this connection."""
        with self._lock:
            if self._socket is None or self._process_id != os.getpid():
                return False
            try:
                return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
            except BlockingIOError:
                return True
            except OSError:
                return False

    def close(self) -> None:
        """End the connection, and the lease: the daemon restores what is changed."""
        with self._lock:
            self._drop()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was not made as a whole
            self._drop()

    def drop_in_child(self) -> None:
        """Close the socket that this process has inherited: the connection is its parent's."""
        self._drop()

    def _open(self, until: float) -> None:
        self._drop()
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket = opened
        # A thread that waits in `recv` would be woken for nothing when the daemon reads the request.
        self._arrival = select.poll()
        self._arrival.register(opened, select.POLLIN)
        # The kernel's own timeout: that of Python takes more calls of the kernel for each request.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        try:
            opened.connect(self.path)
        except BlockingIOError:  # its queue of new connections is full
            raise TimeoutError from None
        try:
            start_ticks = ProcessIdentity.current().start_ticks
        except OSError:  # not Linux
            start_ticks = 0
        fields = {
            "version": VERSION,
            "program": _shown(program_name()),
            "job": _shown(job_id()),
            "token": program_token(),
            "start_ticks": start_ticks,
        }
        self._exchange("hello", fields, until)
        self._process_id = os.getpid()

    def _exchange(self, operation: str, fields: Mapping[str, Any], until: float) -> dict[str, Any]:
        """Send a request, and wait for its reply. Replies to earlier requests, which came too late, are dropped."""
        assert self._socket is not None
        self._count += 1
        line = encode_request(self._count, operation, fields)
        try:
            if self._socket.send(line) < len(line):
                raise ConnectionAbortedError("it takes no more requests")
        except BlockingIOError:
            raise TimeoutError from None
        except BrokenPipeError:
            if not self._has_received():  # a refusal that came before the end
                raise
        while True:
            number, answer = decode_reply(self._read_line(until))
            if isinstance(answer, ZeusError) and number in (0, self._count):
                raise answer
            if number == self._count and not isinstance(answer, ZeusError):
                return answer

    def _has_received(self) -> bool:
        assert self._socket is not None
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def _read_line(self, until: float) -> bytes:
        assert self._socket is not None
        while b"\n" not in self._received:
            if len(self._received) > MAX_REPLY_BYTES:
                raise ProtocolError("a reply is too long")
            self._arrival.poll(max(0.0, until - time.monotonic()) * 1e3)
            try:
                data = self._socket.recv(MAX_REPLY_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                raise TimeoutError from None
            if not data:
                raise EOFError("it closed the connection")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._received = b""

    def _unreachable(self, error: Exception) -> DeviceError:
        if isinstance(error, PermissionError):
            return PermissionDeniedError(
                f"this process may not use the zeus-core daemon at {self.path}: an administrator adds its user to the "
                f"group of that file: sudo usermod -aG {_group_of(self.path)} USER, and then the user logs in anew"
            )
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return PermissionDeniedError(
                f"no zeus-core daemon runs at {self.path}: an administrator starts one, see docs/daemon.md"
            )
        return DriverFaultError(f"the zeus-core daemon at {self.path} cannot be reached: {error}")


class RemoteControl:
    """One knob of one GPU, changed by the daemon, which restores the original when this process ends.

    Args:
        uuid: The GPU.
        knob: The name of a kind of setting.
        path: The socket of the daemon; None for the usual one.
    """

    def __init__(self, uuid: str, knob: str, path: str | None = None) -> None:
        self._connection = DaemonConnection(path)
        self._setting = {"device": uuid, "knob": knob}

    def allowed(self) -> tuple[PowerRange, float | None]:
        """Read what may be set, and the original that the daemon restores; None for a clock that is not locked.

        Raises:
            DeviceError: The daemon refuses; see `DaemonConnection.ask`.
        """
        answer = self._connection.ask("allowed", self._setting)
        original = answer["original"]
        return PowerRange(float(answer["lowest"]), float(answer["highest"])), None if original is None else float(
            original
        )

    def set(self, value: float) -> float | None:
        """Change the hardware; return the limit that is enforced, if the board reports it.

        Raises:
            PermissionDeniedError: The daemon does not allow it.
            DeviceHeldError: Another process controls the GPU, or somebody else has set another limit meanwhile.
            DeviceError: The daemon or the driver fails.
            UsageError: The board does not accept the value.
        """
        enforced = self._connection.ask("set", {**self._setting, "value": value}).get("enforced")
        return None if enforced is None else float(enforced)

    def restore(self) -> None:
        """Restore the original until the next `set`. Raises what `release` does."""
        self._connection.ask("restore", self._setting)

    def release(self) -> tuple[str, float | None]:
        """Restore the original for good, and end the lease.

        Returns:
            "restored"; "original" if it was in force; "replaced" if somebody else's value stays; "failed". And what is
            in force in place of an original that the board does not take; None if it takes it.

        Raises:
            DeviceError: The daemon does not answer. It restores all the same, once it sees that this process has ended.
        """
        reply = self._connection.ask("release", self._setting)
        instead = reply.get("instead")
        return str(reply["outcome"]), None if instead is None else float(instead)

    def is_open(self) -> bool:
        """Tell whether the lease lasts. A daemon that has ended, as by a crash, restores the original at its start."""
        return self._connection.is_open()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _shown(text: str) -> str:
    return printable(text)[:200]


def _group_of(path: str) -> str:
    import grp

    try:
        return grp.getgrgid(Path(path).stat().st_gid).gr_name
    except (OSError, KeyError):
        return "zeus"


_connections: weakref.WeakSet[DaemonConnection] = weakref.WeakSet()


def _drop_in_child() -> None:
    for connection in list(_connections):
        connection.drop_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_drop_in_child)
