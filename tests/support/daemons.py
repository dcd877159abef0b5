"""The tests of training as a user without any right: their drivers obey root alone, and a daemon of root serves each.

    python -m tests.unprivileged tests/process/test_process_end.py     (as root)

`DaemonStarter` is root's side. The other side is in the tests' own process, where `make_driver` calls `served`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

__all__ = [
    "UNPRIVILEGED_USER",
    "DaemonStarter",
    "ServingDaemon",
    "daemon_of",
    "is_unprivileged",
    "served",
    "without_rights",
]

STARTER_VARIABLE = "ZEUS_TEST_DAEMON_STARTER"
UNPRIVILEGED_USER = 64001  # its group has the same number


def is_unprivileged():
    """Whether the tests run so."""
    return STARTER_VARIABLE in os.environ


def without_rights(specs):
    """Return devices that obey root alone."""
    return [dataclasses.replace(spec, needs_root=True) for spec in specs] if is_unprivileged() else specs


class ServingDaemon:
    """The daemon of a driver, as the tests reach it: what root does to it, they ask for.

    Args:
        lines: The connection to root's side.
        socket_path: The daemon's socket.
    """

    def __init__(self, lines, socket_path):
        self._lines = lines
        self.socket_path = socket_path
        self.ledger_path = Path(socket_path).parent / "ledger"
        self.said = ""
        """What the last one has said at its start."""

    def kill(self):
        self._ask("kill")

    def start(self):
        """Start it again, after `kill`. Returns the moment of `time.monotonic()` before that."""
        begin = time.monotonic()
        self.said = self._ask("start")
        return begin

    def stop(self):
        """Let it do nothing until `go_on`."""
        self._ask("stop")

    def go_on(self):
        self._ask("go_on")

    def remove_ledger(self):
        self._ask("remove_ledger")

    def _ask(self, what):
        self._lines.write(json.dumps(what) + "\n")
        self._lines.flush()
        return json.loads(self._lines.readline())


_daemons = weakref.WeakKeyDictionary()


def daemon_of(driver):
    """Return the daemon that serves a driver; None where tests run as usual."""
    return _daemons.get(driver)


@contextlib.contextmanager
def served(driver):
    """Let a daemon serve a driver, for this process and those it starts. Nothing happens where tests run as usual."""
    if not is_unprivileged():
        yield
        return
    before = os.environ.get("ZEUS_DAEMON_SOCKET")
    with socket.socket(socket.AF_UNIX) as starter, starter.makefile("rw") as lines:
        starter.connect(os.environ[STARTER_VARIABLE])
        lines.write(json.dumps(driver.environment) + "\n")
        lines.flush()
        _daemons[driver] = daemon = ServingDaemon(lines, json.loads(lines.readline()))
        os.environ["ZEUS_DAEMON_SOCKET"] = daemon.socket_path
        try:
            yield
        finally:
            del os.environ["ZEUS_DAEMON_SOCKET"]
            if before is not None:
                os.environ["ZEUS_DAEMON_SOCKET"] = before


class DaemonStarter:
    """Starts a daemon for each connection, with the variables that come by it, and ends it with the connection.

    Args:
        original_mhz: The clock that the administrator keeps all GPUs locked at; None for none.
    """

    def __init__(self, original_mhz=None):
        self.folder = Path(tempfile.mkdtemp(prefix="zeus-unprivileged-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.path = self.folder / "starter.sock"
        clock = "" if original_mhz is None else f"original_sm_clock_mhz = {original_mhz}\n"
        (self.folder / "daemon.toml").write_text(
            f"group = {UNPRIVILEGED_USER}\n{clock}allow = [{{groups = [{UNPRIVILEGED_USER}]}}]\n"
        )
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.path.chmod(0o666)  # of a test, in a folder of its own
        self.listener.listen()
        self.count = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self.listener.accept()
                self.count += 1
                threading.Thread(target=self.serve, args=(connection, self.folder / str(self.count))).start()

    def serve(self, connection, folder):
        with contextlib.suppress(OSError), connection, connection.makefile("rw") as lines:  # until the other side ends
            daemon = StartedDaemon(folder, self.folder / "daemon.toml", json.loads(lines.readline()))
            reply = str(daemon.socket_path)
            try:
                while True:
                    lines.write(json.dumps(reply) + "\n")
                    lines.flush()
                    asked = lines.readline()
                    if not asked:
                        break
                    reply = getattr(daemon, json.loads(asked))()
            finally:
                daemon.end()

    def close(self):
        self.listener.close()
        shutil.rmtree(self.folder)


class StartedDaemon:
    """Root's daemon for one driver. `ServingDaemon` names the methods to call.

    Args:
        folder: For its files; it is made.
        policy_path: Its policy.
        environment: The variables of the driver.
    """

    def __init__(self, folder, policy_path, environment):
        folder.mkdir()
        self.socket_path, self.ledger_path = folder / "daemon.sock", folder / "ledger"
        self.environment = {**os.environ, **environment, "ZEUS_LEDGER_DIR": str(self.ledger_path)}
        self.command = [sys.executable, "-m", "zeus_core", "daemon", "--socket", self.socket_path]
        self.command += ["--policy", policy_path, "--audit", folder / "audit.jsonl"]
        self.start()

    def start(self):
        """Start it, and return what it said until it was ready."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(self.command, env=self.environment, text=True, **pipes)
        said = ""
        while " GPU(s) at " not in said:
            line = self.process.stderr.readline()
            assert line, f"the daemon has not started: {said}"
            said += line
        return said

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def remove_ledger(self):
        shutil.rmtree(self.ledger_path)

    def end(self):
        self.go_on()
        self.process.terminate()
        self.process.communicate()
