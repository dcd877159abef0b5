"""Another user of the machine, in no group, locks every file of root's ledger that it can open: nobody waits for it.

The hostile user never lets go, so that whoever waits for one of its locks would not restore at all.
"""

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.nvml_driver import DeviceSpec, NvmlDriver
from tests.support.users import OTHER_USER, common_folder, needs_root

__all__ = ["common_folder"]

pytestmark = needs_root

ORIGINAL_WATTS = 450.0  # neither the default (650 W) nor the maximum (700 W)
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)
WAIT_SECONDS = 240.0

OWNER = """
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.device import discover_gpus
    from zeus_core.settings.limit_knob import PowerLimitKnob
    knob = PowerLimitKnob(discover_gpus({}), 25)
    for watts in knob.settings[-2:]:
        knob.apply(watts)
    print("ready", flush=True)
    while True:
        knob.apply(knob.settings[-2])
        knob.apply(knob.settings[-1])
"""
CLIENT = """
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.device.remote.client import RemoteControl
    remote = RemoteControl({uuid!r}, "power_limit")
    remote.set(250)
    print("ready", flush=True)
    input()
"""
# Each says when it began, once it is loaded.
COMMAND = """
    import time
    from zeus_core.cli import main
    print(time.monotonic(), flush=True)
    raise SystemExit(main(["restore", "--stale"]))
"""
NEXT_START = """
    import time
    from zeus_core.device import discover_gpus
    from zeus_core.settings.limit_knob import PowerLimitKnob
    print(time.monotonic())
    knob = PowerLimitKnob(discover_gpus({}), 25)
    assert knob.settings[0] == 450, knob.settings
"""


def until(condition):
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Machine:
    """A driver, root's ledger that everybody can read, and a hostile user, until the end of the test."""

    def __init__(self, folder, library, stack):
        self.folder, self.stack = folder, stack
        self.driver = NvmlDriver(folder, [DEVICE], library=library)
        self.ledger = self.driver.ledger_path
        self.ledger.mkdir(mode=0o755)
        stack.callback(self.driver.close)
        self.socket = folder / "run" / "daemon.sock"
        self.socket.parent.mkdir(mode=0o755)

    def let_others_lock(self):
        """Let a hostile user lock whatever it can open, and keep it: also the lock of an earlier version."""
        earlier = self.ledger / f"{self.driver[0].uuid}.lock"
        earlier.touch()
        earlier.chmod(0o644)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(OTHER_USER)
                os.setuid(OTHER_USER)
                lock_everything(self.ledger, writer)
            finally:
                os._exit(1)
        os.close(writer)

        def end():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)

        self.stack.callback(end)
        assert os.read(reader, 1) == b"!"

    def is_original(self):
        return self.driver[0].power_limit_watts == ORIGINAL_WATTS

    def seconds_until_restored(self, output):
        """Return the seconds between the beginning that a program has printed and the call that restored the GPU."""
        calls = self.driver.calls("nvmlDeviceSetPowerManagementLimit")
        return max(0.0, max(call.seconds for call in calls if call.code == 0) - float(output.split()[0]))

    def start(self, program):
        process = self.driver.start(program)
        self.stack.callback(end_process, process)
        line = process.stdout.readline()
        assert line == "ready\n", process.stderr.read()
        assert not self.is_original()
        return process

    def kill_owner(self, *, with_guardian):
        owner = self.start(OWNER)
        guardian = guardian_of(owner.pid)
        time.sleep(random.uniform(0.0, 0.02))  # anywhere in a change
        if with_guardian:
            os.kill(guardian, signal.SIGKILL)
        owner.kill()
        owner.wait()

    def command(self, *arguments):
        environment = {**os.environ, **self.driver.environment, "ZEUS_DAEMON_SOCKET": str(self.socket)}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-m", "zeus_core", *map(str, arguments)]
        process = subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)
        self.stack.callback(end_process, process)
        return process

    def start_daemon(self):
        policy = self.folder / "daemon.toml"
        policy.write_text("allow = []\n")
        daemon = self.command(
            "daemon", "--socket", self.socket, "--policy", policy, "--audit", self.folder / "audit.jsonl"
        )
        said = ""
        while " GPU(s) at " not in said:
            line = daemon.stderr.readline()
            assert line, said
            said += line
        os.environ["ZEUS_DAEMON_SOCKET"] = str(self.socket)
        self.stack.callback(os.environ.pop, "ZEUS_DAEMON_SOCKET", None)
        return daemon


def lock_everything(folder, ready):
    """Open and lock each file that is there, and each that appears, and the folder."""
    inodes = set()
    is_ready = False
    while True:
        for path in (folder, *folder.iterdir()):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                inode = os.fstat(descriptor).st_ino
                if inode in inodes:
                    os.close(descriptor)
                else:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    inodes.add(inode)
        if not is_ready:
            os.write(ready, b"!")
            is_ready = True
        time.sleep(0.0005)


def guardian_of(pid):
    found = []

    def find():
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if f", {pid}, " in (text := path.read_text()) and "guardian_program" in text:
                    found.append(int(path.parent.name))
        return found

    until(find)
    return found[0]


def end_process(process):
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


@pytest.fixture
def machine(common_folder, nvml_library):
    with contextlib.ExitStack() as stack:
        yield Machine(common_folder, nvml_library, stack)


def by_guardian(machine):
    machine.kill_owner(with_guardian=False)
    begin = time.monotonic()
    until(machine.is_original)
    return time.monotonic() - begin


def by_command(machine):
    machine.kill_owner(with_guardian=True)
    return machine.seconds_until_restored(machine.driver.run(COMMAND))


def by_next_start(machine):
    machine.kill_owner(with_guardian=True)
    return machine.seconds_until_restored(machine.driver.run(NEXT_START))


def by_next_daemon(machine):
    machine.kill_owner(with_guardian=True)
    begin = time.monotonic()
    daemon = machine.start_daemon()
    seconds = time.monotonic() - begin
    assert machine.is_original()
    end_process(daemon)
    return seconds


def by_daemon_of_a_client(machine):
    daemon = machine.start_daemon()
    client = machine.start(CLIENT.format(uuid=machine.driver[0].uuid))
    client.kill()
    begin = time.monotonic()
    until(machine.is_original)
    seconds = time.monotonic() - begin
    daemon.terminate()
    daemon.communicate()
    return seconds


def by_daemon_that_ends(machine):
    daemon = machine.start_daemon()
    client = machine.start(CLIENT.format(uuid=machine.driver[0].uuid))
    begin = time.monotonic()
    daemon.terminate()
    daemon.communicate()
    seconds = time.monotonic() - begin
    assert machine.is_original()
    client.kill()
    return seconds


WAYS = [by_guardian, by_command, by_next_start, by_next_daemon, by_daemon_of_a_client, by_daemon_that_ends]


@pytest.mark.parametrize("restored", WAYS)
def test_nobody_who_restores_waits_for_a_lock_of_another_user(machine, restored):
    machine.let_others_lock()
    restored(machine)
    assert machine.is_original()
    until(lambda: not list(machine.ledger.glob("*.json")))
    open_to_others = [path.name for path in machine.ledger.iterdir() if path.stat().st_mode & 0o077]
    assert open_to_others == [], "and the lock of an earlier version is removed"


def test_no_lock_can_be_opened_by_other_users(machine):
    owner = machine.start(OWNER)
    locks = list(machine.ledger.glob("*.lock"))
    assert locks
    assert all(path.stat().st_mode & 0o077 == 0 for path in locks)
    owner.kill()
    until(lambda: not list(machine.ledger.iterdir()))


@pytest.mark.long
def test_a_hundred_kills_with_a_hostile_user_leave_nothing(machine, capsys):
    machine.let_others_lock()
    seconds = {way.__name__: [] for way in WAYS}
    for number in range(100):
        way = WAYS[number % len(WAYS)]
        seconds[way.__name__].append(way(machine))
        assert machine.is_original(), way
        until(lambda: not list(machine.ledger.glob("*.json")))
    with capsys.disabled():
        for name, each in seconds.items():
            median = sorted(each)[len(each) // 2]
            print(f"\n{name}: {len(each)} kills, median {median:.3f} s, longest {max(each):.3f} s")
