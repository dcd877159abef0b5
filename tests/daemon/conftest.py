"""A daemon that really runs, on the driver in C, and clients that are processes of other users."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from tests.nvml_driver import DeviceSpec, NvmlDriver
from tests.support.users import needs_root as needs_root
from tests.support.users import run_by
from zeus_core._identity import ProcessIdentity
from zeus_core.device.remote.protocol import VERSION

ORIGINAL_WATTS = 450.0  # neither the default (650 W) nor the maximum (700 W)
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS, needs_root=True)
MEMBER, STRANGER = 64001, 64002  # users of this test alone; MEMBER is in GROUP
GROUP = 64001
OPERATORS = 64003  # a group of the connections of tests, which are root's
MEMBERS_ALLOWED = f"group = {GROUP}\nallow = [{{groups = [{GROUP}]}}]\n"
WAIT_SECONDS = 240.0  # far more than anything takes: timing never decides a test

# A client that holds a limit until its input ends.
HOLD_LIMIT = """
    import sys
    from zeus_core.device.remote.client import RemoteControl
    remote = RemoteControl({uuid!r}, "power_limit")
    remote.set(250)
    print("ready", flush=True)
    sys.stdin.readline()
"""

REPOSITORY = Path(__file__).parents[2]


def until(condition, what="it", seconds=WAIT_SECONDS):
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} has not happened"
        time.sleep(0.002)


class Raw:
    """A connection that sends what no client of ours would."""

    def __init__(self, path, greets=True, version=VERSION):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(WAIT_SECONDS)
        groups = os.getgroups()
        if os.geteuid() == 0:
            os.setgroups([GROUP, OPERATORS])  # in a container, root is a user like any
        try:
            self.socket.connect(str(path))
        finally:
            if os.geteuid() == 0:
                os.setgroups(groups)
        self.file = self.socket.makefile("rb")
        self.number = 0
        if greets:
            start_ticks = ProcessIdentity.current().start_ticks
            names = {"program": "test", "job": "", "token": "token"}
            self.answer = self.ask("hello", version=version, start_ticks=start_ticks, **names)

    def send(self, data):
        with contextlib.suppress(BrokenPipeError):  # a refusal can be read all the same
            self.socket.sendall(data)

    def ask(self, operation, **fields):
        self.number += 1
        self.send(json.dumps({"id": self.number, "op": operation, **fields}).encode() + b"\n")
        return self.read()

    def read(self):
        """Return the next reply; None at the end of the connection."""
        try:
            line = self.file.readline()
        except ConnectionError:
            return None
        return json.loads(line) if line else None

    def close(self):
        self.file.close()
        self.socket.close()


# `python -m zeus_core`, with the energy counters of CPUs in the folder that the first argument names.
DAEMON = """
import runpy, sys
from pathlib import Path
from zeus_core.device import rapl

rapl.POWERCAP_ROOT = Path(sys.argv.pop(1))
runpy.run_module("zeus_core", run_name="__main__", alter_sys=True)
"""


class World:
    """A folder that all users can enter, with a driver, and with a daemon once it is started."""

    def __init__(self, folder, library, specs):
        self.folder = folder
        self.driver = NvmlDriver(folder, specs, library=library)
        self.socket = folder / "socket" / "daemon.sock"
        self.audit = folder / "audit.jsonl"
        self.policy = folder / "daemon.toml"
        self.ledger = folder / "run"
        for made in (self.socket.parent, self.ledger):
            made.mkdir(mode=0o755)
        self.processes = []
        self.connections = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ZEUS", "CUDA"))},
            **self.driver.environment,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "ZEUS_DAEMON_SOCKET": str(self.socket),
            "HOME": str(folder),
        }
        self.daemon = None
        self.write_policy(MEMBERS_ALLOWED)

    @property
    def uuids(self):
        return [device.uuid for device in self.driver]

    def write_policy(self, text):
        self.policy.write_text(text)

    def spawn_daemon(self, *arguments, below=()):
        command = [*below, sys.executable, "-c", DAEMON, str(self.folder / "powercap"), "daemon"]
        command += ["--policy", str(self.policy), "--audit", str(self.audit), *map(str, arguments)]
        environment = {**self.environment, "ZEUS_LEDGER_DIR": str(self.ledger)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.processes.append(subprocess.Popen(command, env=environment, start_new_session=True, **pipes))
        return self.processes[-1]

    def start_daemon(self, *arguments, below=()):
        self.daemon = self.spawn_daemon(*arguments, below=below)
        self.said = self.daemon.stderr.readline()
        while " GPU(s) at " not in self.said:
            line = self.daemon.stderr.readline()
            assert line, self.said
            self.said += line
        return self.daemon

    def client(self, program, uid=MEMBER, gids=(GROUP,), is_patient=True, below=(), **variables):
        """Start a Python program as another user, which waits for a daemon that a busy machine gives no turn.

        `below` are words of programs that start it, such as `unshare --mount`.
        """
        environment = {**self.environment, **variables}
        patience = "from tests.support.hooks import be_patient\nbe_patient()\n" if is_patient else ""
        self.processes.append(
            subprocess.Popen(
                **run_by(uid, gids, [*below, sys.executable, "-u", "-c", patience + textwrap.dedent(program)]),
                env=environment,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # ended with its children
            )
        )
        return self.processes[-1]

    def run(self, program, **options):
        """Run such a program to its end, and return its output and its errors."""
        process = self.client(program, **options)
        output, errors = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0, errors
        return output.strip(), errors

    def connect(self, **options):
        self.connections.append(Raw(self.socket, **options))
        return self.connections[-1]

    def audited(self, *events):
        whole, _, _ = self.audit.read_text().rpartition("\n")  # not a line that is being written
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if not events or line["event"] in events]

    def entries(self):
        return sorted(path.name for path in self.ledger.glob("*.json"))

    def end(self):
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self.driver.close()


def made_world(library, specs):
    folder = Path(tempfile.mkdtemp(prefix="zeus-daemon-", dir="/tmp"))  # those of pytest are closed to other users
    folder.chmod(0o755)
    copied = folder / "lib" / "libnvidia-ml.so.1"
    copied.parent.mkdir()
    shutil.copy(library, copied)
    return World(folder, copied, specs)


@pytest.fixture
def make_world(nvml_library):
    """Makes worlds without a daemon."""
    worlds = []

    def make(*specs):
        worlds.append(made_world(nvml_library, specs or [DEVICE]))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()
        shutil.rmtree(world.folder)


@pytest.fixture
def world(make_world):
    """A daemon with two GPUs, which the test may kill."""
    made = make_world(DEVICE, DEVICE)
    made.start_daemon()
    return made


@pytest.fixture(scope="module")
def common_world(nvml_library):
    """A daemon with two GPUs for all tests of a file."""
    made = made_world(nvml_library, [DEVICE, DEVICE])
    made.start_daemon()
    yield made
    made.end()
    shutil.rmtree(made.folder)


@pytest.fixture
def raw(common_world):
    """Makes connections to the common daemon. When a test ends, all is as it was."""
    connections = []

    def make(*arguments, **options):
        connections.append(Raw(common_world.socket, *arguments, **options))
        return connections[-1]

    yield make
    for connection in connections:
        connection.close()
    until(lambda: not common_world.entries())
    assert [device.power_limit_watts for device in common_world.driver] == [ORIGINAL_WATTS] * 2
    assert [device.locked_clock_mhz for device in common_world.driver] == [None] * 2
    assert common_world.daemon.poll() is None
