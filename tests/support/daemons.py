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
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

__all__ = ["UNPRIVILEGED_USER", "DaemonStarter", "is_unprivileged", "served", "without_rights"]

STARTER_VARIABLE = "ZEUS_TEST_DAEMON_STARTER"
UNPRIVILEGED_USER = 64001  # its group has the same number


def is_unprivileged():
    """Whether the tests run so."""
    return STARTER_VARIABLE in os.environ


def without_rights(specs):
    """Return devices that obey root alone."""
    return [dataclasses.replace(spec, needs_root=True) for spec in specs] if is_unprivileged() else specs


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
        os.environ["ZEUS_DAEMON_SOCKET"] = json.loads(lines.readline())
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
        (self.folder / "daemon.toml").write_text(f"group = {UNPRIVILEGED_USER}\n{clock}")
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
        with connection, connection.makefile("rw") as lines:
            environment = json.loads(lines.readline())
            daemon = self.start(folder, environment)
            with contextlib.suppress(OSError):  # the other side has ended
                lines.write(json.dumps(str(folder / "daemon.sock")) + "\n")
                lines.flush()
                lines.readline()  # until its end
            daemon.terminate()
            daemon.communicate()

    def start(self, folder, environment):
        folder.mkdir()
        command = [sys.executable, "-m", "zeus_core", "daemon", "--socket", folder / "daemon.sock"]
        command += ["--policy", self.folder / "daemon.toml", "--audit", folder / "audit.jsonl"]
        environment = {**os.environ, **environment, "ZEUS_LEDGER_DIR": str(folder / "ledger")}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        daemon = subprocess.Popen(command, env=environment, text=True, **pipes)
        while " GPU(s) at " not in (line := daemon.stderr.readline()):
            assert line, "the daemon has not started"
        return daemon

    def close(self):
        self.listener.close()
        shutil.rmtree(self.folder)
