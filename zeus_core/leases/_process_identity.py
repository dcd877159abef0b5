"""The identity of a process: its id alone may belong to another one by now."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["ProcessIdentity"]

_PROC = "/proc"
_INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux: the namespace that sees all processes
_START_TIME = 19  # field 22 of /proc/PID/stat, counted from the state, which follows the name in parentheses


@dataclass(frozen=True)
class ProcessIdentity:
    """One process of one boot of a machine. Linux only.

    Attributes:
        boot_id: The boot of the machine.
        pid_namespace: Where the process id counts, such as "pid:[4026531836]": containers have their own.
        pid: The process id.
        start_ticks: When the process began, in ticks since the boot. It stays the same over `exec`.
    """

    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return the identity of this process.

        Raises:
            OSError: This system has no /proc, or one that shows other processes.
        """
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the identity of a process, by its id in the namespace of this process.

        Raises:
            OSError: There is no such process, or no /proc.
        """
        namespace = os.readlink(f"{_PROC}/self/ns/pid")
        return cls(_boot_id(), namespace, pid, _start_ticks(pid))

    @property
    def is_of_earlier_boot(self) -> bool:
        """Whether the machine has started anew since, or it was another machine. False where that is not known."""
        try:
            return self.boot_id != _boot_id()
        except OSError:
            return False

    def is_alive(self) -> bool:
        """Tell whether the process lives. One in a container that this process cannot look into counts as alive."""
        if self.is_of_earlier_boot:
            return False
        try:
            namespace = os.readlink(f"{_PROC}/self/ns/pid")
        except OSError:
            return True
        if self.pid_namespace == namespace:
            return self._runs_as(self.pid)
        return namespace != _INITIAL_NAMESPACE or self._runs_in_container()

    def _runs_as(self, pid: int) -> bool:
        try:
            return _start_ticks(pid) == self.start_ticks
        except OSError:
            return False

    def _runs_in_container(self) -> bool:
        for pid in map(int, filter(str.isdigit, os.listdir(_PROC))):
            try:
                if pid != 1 and os.readlink(f"{_PROC}/{pid}/ns/pid") == self.pid_namespace and self._runs_as(pid):
                    return True
            except PermissionError:
                return True  # only root can look into the processes of others
            except OSError:
                continue  # it has ended, or has no namespace any more
        return False


def _start_ticks(pid: int) -> int:
    """Read when a process began. Raises `ProcessLookupError` for one that has ended and waits for its parent."""
    state, *fields = _read(f"{_PROC}/{pid}/stat").rpartition(")")[2].split()
    if state in {"Z", "X"} and len(os.listdir(f"{_PROC}/{pid}/task")) < 2:  # else only its first thread has ended
        raise ProcessLookupError(f"process {pid} has ended")
    return int(fields[_START_TIME - 1])


def _boot_id() -> str:
    return _read(f"{_PROC}/sys/kernel/random/boot_id").strip()


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
