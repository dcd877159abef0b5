"""The identity of a process, as its id alone may belong to another one by now; and what people know it by."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID")
_MAX_PROGRAM_LENGTH = 200
_START_TIME = 19  # field 22 of /proc/PID/stat, counted from the state, which follows the name in parentheses


class ProcessTable:
    """The processes of this machine, as /proc shows them. All methods raise `OSError` where it does not."""

    def boot_id(self) -> str:
        """Return the identifier of this boot of the machine."""
        return _read("/proc/sys/kernel/random/boot_id").strip()

    def namespace(self) -> str:
        """Return the namespace that process ids count in."""
        return os.readlink("/proc/self/ns/pid")

    def start_ticks(self, pid: int) -> int:
        """Return when a process began. Raises `ProcessLookupError` for one that has ended and waits for its parent."""
        state, *fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if state in {"Z", "X"} and len(os.listdir(f"/proc/{pid}/task")) < 2:  # else only its first thread has ended
            raise ProcessLookupError(f"process {pid} has ended")
        return int(fields[_START_TIME - 1])

    def parent(self, pid: int) -> int:
        """Return the process that began a process, or that has taken it over."""
        return int(_read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])


THIS_MACHINE = ProcessTable()


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
    def of(cls, pid: int, processes: ProcessTable = THIS_MACHINE) -> ProcessIdentity:
        """Return the identity of a process, by its id in the namespace of this process.

        Raises:
            OSError: There is no such process, or no /proc.
        """
        return cls(processes.boot_id(), processes.namespace(), pid, processes.start_ticks(pid))

    def is_of_earlier_boot(self, processes: ProcessTable = THIS_MACHINE) -> bool:
        """Tell whether the machine has started anew since, or it was another one. False where that is not known."""
        try:
            return self.boot_id != processes.boot_id()
        except OSError:
            return False

    def is_alive(self, processes: ProcessTable = THIS_MACHINE) -> bool:
        """Tell whether the process lives. One in another namespace counts as alive: its id says nothing here."""
        if self.is_of_earlier_boot(processes):
            return False
        if self.is_elsewhere(processes):
            return True
        try:
            return processes.start_ticks(self.pid) == self.start_ticks
        except OSError:
            return False

    def is_elsewhere(self, processes: ProcessTable = THIS_MACHINE) -> bool:
        """Tell whether the process id counts in another namespace, such as that of a container."""
        try:
            return self.pid_namespace != processes.namespace()
        except OSError:  # there is no /proc
            return True


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def program_name() -> str:
    """Return the name of this program, without its arguments, which may hold secrets."""
    path = sys.argv[0] if getattr(sys, "argv", None) else ""  # an interpreter within another program has none
    folder, name = os.path.split(path)
    return (os.path.basename(folder) if name == "__main__.py" else name)[:_MAX_PROGRAM_LENGTH]


def printable(text: str, besides: str = "") -> str:
    """Return a text of others, such as a name: what a terminal could obey is a question mark, but some characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in besides else "?" for each in text)


def is_anonymous(environment: Mapping[str, str]) -> bool:
    """Return whether a user wants to be named nowhere: `ZEUS_TAGS=none`."""
    return "none" in (tag.strip().lower() for tag in environment.get("ZEUS_TAGS", "").split(","))


def job_id(environment: Mapping[str, str] = os.environ) -> str:
    """Return the job id of the batch system, such as "12345"; empty if there is none, or it is to be named nowhere."""
    if is_anonymous(environment):
        return ""
    return next(filter(None, map(environment.get, _JOB_VARIABLES)), None) or ""


_token_of_process: dict[int, str] = {}


def program_token() -> str:
    """Return a token of this program: `exec` lets one process execute several programs."""
    return _token_of_process.setdefault(os.getpid(), os.urandom(8).hex())
