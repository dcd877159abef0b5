"""Changes that the daemon makes by commands of an administrator."""

import shlex
import sys

import pytest

from tests.daemon.conftest import MEMBERS_ALLOWED, ORIGINAL_WATTS, WAIT_SECONDS, needs_root, until

pytestmark = needs_root

# Stands for nvidia-smi: it changes the GPU through the same library, as root.
SCRIPT = """#!/bin/sh
{variables}
exec {python} {program} "$@"
"""
PROGRAM = """
import sys
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByUUID(sys.argv[1].encode())
what, *value = sys.argv[2:]
if what == "-pl" and value[0] == "333":
    print("Insufficient Permissions")
elif what == "-pl" and value[0] == "334":
    sys.exit(4)
elif what == "-pl" and value[0] != "335":
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu, int(float(value[0]) * 1000))
elif what == "-lgc":
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu, int(value[0]), int(value[0]))
elif what == "-rgc":
    pynvml.nvmlDeviceResetGpuLockedClocks(gpu)
"""


@pytest.fixture
def commanded(make_world):
    world = make_world()
    (world.folder / "change.py").write_text(PROGRAM)
    program = world.folder / "change"
    variables = "\n".join(f"export {name}='{value}'" for name, value in world.driver.environment.items())
    python = shlex.quote(sys.executable)
    program.write_text(SCRIPT.format(variables=variables, python=python, program=world.folder / "change.py"))
    program.chmod(0o755)
    world.write_policy(
        f"""
        {MEMBERS_ALLOWED}
        [commands]
        set_power_limit = ["{program}", "{{uuid}}", "-pl", "{{watts}}"]
        lock_sm_clock = ["{program}", "{{uuid}}", "-lgc", "{{mhz}}"]
        unlock_sm_clock = ["{program}", "{{uuid}}", "-rgc"]
        failure_pattern = "(?i)insufficient"
        """
    )
    return world


def test_changes_are_made_by_the_commands_and_restored_by_them(commanded):
    commanded.start_daemon()
    client = commanded.connect()
    uuid, device = commanded.uuids[0], commanded.driver[0]
    assert "result" in client.ask("set", device=uuid, knob="power_limit", value=250)
    assert "result" in client.ask("set", device=uuid, knob="sm_clock", value=1410)
    assert (device.power_limit_watts, device.locked_clock_mhz) == (250, 1410)
    client.close()
    until(lambda: (device.power_limit_watts, device.locked_clock_mhz) == (ORIGINAL_WATTS, None))
    callers = {call.process_id for call in commanded.driver.calls() if "Set" in call.function}
    assert commanded.daemon.pid not in callers


@pytest.mark.parametrize(
    ("watts", "words"),
    [
        (333, "failed with code 0: Insufficient Permissions"),
        (334, "failed with code 4"),
        (335, "the command for 335 W succeeded, but 450 W are requested"),
    ],
)
def test_what_a_command_says_and_does_is_checked(commanded, watts, words):
    commanded.start_daemon()
    client = commanded.connect()
    reply = client.ask("set", device=commanded.uuids[0], knob="power_limit", value=watts)
    assert reply["error"] == "fault"
    assert words in reply["message"]
    assert [line["because"] for line in commanded.audited("failed")] == [reply["message"]]


def test_a_program_that_others_could_change_is_refused(commanded):
    program = commanded.folder / "change"
    program.chmod(0o757)
    process = commanded.spawn_daemon()
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1
    assert f"{program} can be changed by others: sudo chmod go-w {program}" in errors
    program.unlink()
    process = commanded.spawn_daemon()
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert "No such file" in errors


def test_a_limit_that_the_board_rounds_can_be_set_again(commanded):
    commanded.driver[0].take_limits(step_watts=10)
    commanded.start_daemon()
    client = commanded.connect()
    for watts in (345, 345, 341, 300):
        assert "result" in client.ask("set", device=commanded.uuids[0], knob="power_limit", value=watts)
        assert commanded.driver[0].power_limit_watts == watts // 10 * 10
