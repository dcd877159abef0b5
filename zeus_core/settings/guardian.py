"""The guardian of this process: another process that restores what this one has changed, however this one ends.

    this process ──── socket ────> guardian          hold ENTRY, drop KEY: one way, nothing is waited for

The socket ends with this process: at its end, when it is killed, and at `exec`. Forked children close their copies; the
guardian also watches the process itself, as children of C code keep theirs.

This is module-level state, as a process has one guardian, and forks are process-wide.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

from zeus_core._identity import ProcessIdentity
from zeus_core.settings.entry import LedgerEntry, LedgerKey

# It takes 80 to 250 ms, longer on a busy machine. The thread of a driver call waits for it, whose deadline is 0.65 s in
# all: one that is later has the entry in its socket, and the ledger has it too.
_READY_SECONDS = 0.25
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGTSTP")
_MAX_PATH_CHARACTERS = 100_000  # Linux takes 128 KiB in one argument


class Guardian:
    """Starts the guardian, sends it all changes, and lets it end with the last entry.

    It takes 80 to 250 ms to start, a second on a machine that is busy: `prepare` starts it ahead of the first change,
    which waits until it is ready. A guardian that has been killed is started again by the next change.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._entries: dict[LedgerKey, LedgerEntry] = {}
        self._ledger_folder: str | None = None
        self._is_ready = False
        self._locks: dict[int, threading.RLock] = {}  # by process id, as a forked child never gets one that is held
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    @property
    def _lock(self) -> threading.RLock:
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def prepare(self) -> None:
        """Start the guardian, unless it runs. Never raises: the first entry tries again."""
        with self._lock, contextlib.suppress(OSError):
            if self._socket is None:
                self._start()

    def prepare_soon(self) -> None:
        """Start the guardian in the background, unless it runs."""
        if self._socket is None:
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                threading.Thread(target=self.prepare, name="zeus-core guardian", daemon=True).start()

    def hold(self, entry: LedgerEntry, ledger_folder: str | None) -> None:
        """Have an entry restored when this process ends.

        Args:
            entry: The entry, in place of the one with the same key.
            ledger_folder: The folder of the ledger; None if there is none.

        Raises:
            OSError: The guardian cannot be started.
        """
        with self._lock:
            self._entries[entry.key] = entry
            self._ledger_folder = ledger_folder or self._ledger_folder
            if self._socket is None or not self._send(self._message(entry)):
                self._start()
        self._wait_until_ready()

    def revive(self) -> None:
        """Start the guardian again if it has been killed. It costs a microsecond where it has not.

        Raises:
            OSError: It cannot be started.
        """
        with self._lock:
            if self._socket is not None and self._entries and not self._is_there(self._socket):
                self._start()
        self._wait_until_ready()

    def drop(self, key: LedgerKey) -> None:
        """Forget an entry: the device is restored, or belongs to somebody else. Never raises."""
        with self._lock:
            if self._entries.pop(key, None) is None or self._socket is None:
                return
            self._send({"drop": list(key)})
            if not self._entries:
                self._leave()

    def _start(self) -> None:
        """Start a guardian, and send it all entries: they wait for it in the socket."""
        self._leave()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours
        for entry in self._entries.values():
            self._send(self._message(entry))
        with theirs:
            _start_program(theirs.fileno())

    def _message(self, entry: LedgerEntry) -> dict[str, object]:
        return {"hold": entry.to_json(), "ledger": self._ledger_folder}

    def _send(self, message: object) -> bool:
        """Send a message. False if the guardian is gone; one that is stopped finds later messages in the ledger."""
        if self._socket is None:
            return False
        try:
            self._socket.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    @staticmethod
    def _is_there(ours: socket.socket) -> bool:
        """Return whether the guardian lives: it sends no more than that it is ready, until its end."""
        try:
            return bool(ours.recv(1)) or bool(ours.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _forget(self) -> None:
        """Leave the guardian and the entries to the parent, in a forked child."""
        self._entries = {}
        self._leave()

    def _leave(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._is_ready = False

    def _wait_until_ready(self) -> None:
        """Wait until the guardian says that it is ready; one that is late still takes what was sent to it."""
        ours = self._socket
        if ours is None or self._is_ready:
            return
        self._is_ready = True
        waiting = select.poll()
        with contextlib.suppress(OSError, ValueError):  # closed by a restoring in another thread
            waiting.register(ours, select.POLLIN)
            if waiting.poll(_READY_SECONDS * 1e3):
                ours.recv(1)


guardian: Guardian = Guardian()


def _start_program(descriptor: int) -> None:
    """Start the program, which moves out of the reach of those who end or wait for the children of this process."""
    owner = ProcessIdentity.current()
    arguments = [descriptor, owner.pid, owner.start_ticks]
    ignored = [int(getattr(signal, name)) for name in _IGNORED]
    program = (  # it forks before it imports anything: this process waits for that
        "import os, sys\nif os.fork(): os._exit(0)\n"
        # The signals that end a job must not end it while it imports the rest, either.
        f"import signal\nfor number in {ignored}: signal.signal(number, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_SETMASK, [])\n"
        f"sys.path += {_module_path()!a}\nfrom zeus_core.settings.guardian_program import main\nmain(*{arguments!r})"
    )
    process = subprocess.Popen(
        # Nothing of the environment and the site runs in it: it restores what they may have broken.
        [sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=_lasting_stderr(),
        cwd="/",
        pass_fds=[descriptor],
        start_new_session=True,
    )
    process.wait()  # it forks and ends at once, so that this process has no child that others would wait for


def _module_path() -> list[str]:
    """Return where the guardian finds modules, behind its own: this package, the binding, and what this process finds.

    The binding may be loaded from a folder that is in no path, or no longer: an import hook has found it.
    """
    needed = [str(Path(__file__).parents[2])]
    binding = getattr(sys.modules.get("pynvml"), "__file__", None)
    if binding is not None:
        file = Path(binding).absolute()
        needed.append(str(file.parents[1 if file.stem == "__init__" else 0]))
    found = [entry for entry in map(str, sys.path) if os.path.isabs(entry) and os.path.exists(entry)]
    path = list(dict.fromkeys([*needed, *found]))
    return path if len(ascii(path)) <= _MAX_PATH_CHARACTERS else [*needed, str(Path(os.__file__).parent)]


def _lasting_stderr() -> int | None:
    """Return where the guardian may complain: this process's own errors, unless somebody waits for their end."""
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(2).st_mode) or stat.S_ISSOCK(os.fstat(2).st_mode)
    except OSError:  # it is closed
        is_pipe = True
    return subprocess.DEVNULL if is_pipe else None
