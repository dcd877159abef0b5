"""Containers: process ids count anew in each, and a container that is killed takes the guardian with it.

They are PID namespaces with a /proc of their own, and share the folder of the ledger.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"]


def can_unshare():
    return shutil.which("unshare") and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(
    is_unprivileged() or not can_unshare(),
    reason="NOT TESTED: a PID namespace needs CAP_SYS_ADMIN; run these tests as root",
)

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)
BEGIN = """
    import logging, os, sys, time
    from tests.support.hooks import be_patient
    be_patient()
    logging.basicConfig(format="%(message)s")
    from zeus_core.device import discover_gpus
    from zeus_core.errors import DeviceHeldError
    from zeus_core.settings.limit_knob import PowerLimitKnob

    knob = PowerLimitKnob(discover_gpus({}), 25)
    print(knob.settings[0], flush=True)
    try:
        knob.apply(knob.settings[-1])
    except DeviceHeldError as error:
        print(error, flush=True)
        sys.exit()
    print("ready", flush=True)
"""
HOLD = BEGIN + "    input()\n"
RESTORE = BEGIN + "    knob.restore()\n"
# The child outlives its parent, and the container lasts. The guardian is killed by the test's own hand.
LEAVE_A_CHILD = (
    """
    import os, time
    if os.fork():
        os.wait()  # the first process of a container
        time.sleep(600)
"""
    + textwrap.indent(textwrap.dedent(BEGIN), "    ")
    + """
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(600)
        os._exit(0)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with open(f"/proc/{name}/cmdline") as file:
            is_guardian = "guardian_program" in file.read()
        if is_guardian:
            os.kill(int(name), 9)
    os.kill(os.getpid(), 9)
"""
)


class Containers:
    def __init__(self, driver, stack):
        self.driver, self._stack = driver, stack

    def start(self, program):
        environment = {**os.environ, **self.driver.environment}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [*UNSHARE, sys.executable, "-u", "-c", textwrap.dedent(program)]
        container = subprocess.Popen(command, env=environment, text=True, **pipes)
        self._stack.callback(kill, container)
        return container

    def hold(self, program=HOLD):
        container = self.start(program)
        assert container.stdout.readline() == f"{ORIGINAL_WATTS:g}\n", container.stderr.read()
        assert container.stdout.readline() == "ready\n", container.stderr.read()
        assert not self.is_original()
        return container

    def run(self, program):
        output, errors = self.start(program).communicate(timeout=240)
        return output.splitlines(), errors

    def is_original(self):
        return self.driver[0].power_limit_watts == ORIGINAL_WATTS

    def entries(self):
        return list(self.driver.ledger_path.glob("*.json"))


def kill(container):
    """Kill all of its processes at once: none of them sees another one end before."""
    inside = Path(f"/proc/{container.pid}/ns/pid_for_children")
    with contextlib.suppress(OSError):
        namespace = inside.readlink()
        within = [path for path in Path("/proc").glob("[0-9]*") if namespace_of(path) == namespace]
        for path in within:
            os.kill(int(path.name), signal.SIGSTOP)
        container.kill()
        until(lambda: not any(path.exists() for path in within))
    container.wait()
    for pipe in (container.stdin, container.stdout, container.stderr):
        pipe.close()


def namespace_of(path):
    with contextlib.suppress(OSError):
        return (path / "ns" / "pid").readlink()
    return None


def until(condition):
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def containers(make_driver):
    with contextlib.ExitStack() as stack:
        yield Containers(make_driver(DEVICE), stack)


def test_what_a_killed_container_has_left_is_restored_by_the_next_one(containers):
    kill(containers.hold())
    assert not containers.is_original(), "the guardian was killed, too"
    lines, errors = containers.run(RESTORE)
    assert lines == [f"{ORIGINAL_WATTS:g}", "ready"], errors
    assert "left by process 1 " in errors
    assert containers.is_original()
    assert containers.entries() == []


def test_what_a_killed_container_has_left_is_restored_by_the_command_on_the_host(containers):
    kill(containers.hold())
    code = containers.driver.run(
        "from zeus_core.cli import main; code = main(['restore', '--stale']); print(code)"
    ).splitlines()[-1]
    assert code == "0"
    assert containers.is_original()


def test_a_container_that_lives_keeps_its_gpu(containers):
    holding = containers.hold()
    value = containers.driver[0].power_limit_watts
    lines, _ = containers.run(RESTORE)
    assert lines[0] == f"{ORIGINAL_WATTS:g}", "not the limit of the other container"
    assert "is controlled by process 1 " in lines[1]
    assert "is controlled by process 1 " in containers.driver.run(RESTORE)
    said = containers.driver.run("from zeus_core.cli import main; main(['restore', '--stale'])")
    assert said == "Nothing is to be restored."
    assert containers.driver[0].power_limit_watts == value
    holding.communicate("\n", timeout=240)
    until(lambda: containers.is_original() and not containers.entries())


def test_a_child_that_a_killed_process_has_left_in_its_container_keeps_nothing(containers):
    containers.hold(LEAVE_A_CHILD)
    until(lambda: "ready" in containers.run(RESTORE)[0])
    assert containers.is_original()
