"""The knobs of a process without rights, which the daemon turns and restores."""

import pytest

from tests.daemon.conftest import ORIGINAL_WATTS, STRANGER, needs_root, until

pytestmark = needs_root

PROGRAM = """
    import os, signal, sys, time
    from zeus_core.device import discover_gpus
    from zeus_core.knobs import PowerLimitKnob, SmClockKnob
    gpus = discover_gpus({})
    limits, clocks = PowerLimitKnob(gpus, 25), SmClockKnob(gpus[0])
    limits.apply(300)
    limits.apply(250)
    clocks.apply(clocks.settings[-1])
"""


def state(world):
    device = world.driver[0]
    return device.power_limit_watts, device.locked_clock_mhz


@pytest.mark.parametrize(
    "end", ["limits.restore(), clocks.restore()", "pass", "os.kill(os.getpid(), signal.SIGKILL)"], ids=str.split
)
def test_they_are_set_and_restored(world, end):
    program = f"{PROGRAM}\n    print('ready', flush=True)\n    input()\n    {end}"
    client = world.client(program)
    assert client.stdout.readline() == "ready\n", client.stderr.read()
    assert state(world) == (250.0, world.driver[0].spec.sm_clocks_mhz[-1])
    _, errors = client.communicate("\n", timeout=60)
    until(lambda: state(world) == (ORIGINAL_WATTS, None), errors)
    until(lambda: not world.entries())
    assert errors == ""


def test_a_process_that_may_not_use_the_daemon_is_told_both_ways(world):
    client = world.client(PROGRAM, uid=STRANGER, gids=())
    _, errors = client.communicate(timeout=60)
    assert "sudo nvidia-smi -i" in errors
    assert "or use the zeus-core daemon" in errors
    assert state(world) == (ORIGINAL_WATTS, None)
    assert not list(world.driver.ledger_path.glob("*")), "nothing is written where nothing can be changed"


def test_a_limit_of_somebody_else_stays(world):
    program = f"""{PROGRAM}
    from zeus_core.errors import DeviceHeldError
    print("ready", flush=True)
    input()
    try:
        limits.apply(200)
    except DeviceHeldError as error:
        print(error)
    assert limits.restore() and clocks.restore()
    """
    client = world.client(program)
    assert client.stdout.readline() == "ready\n", client.stderr.read()
    world.driver[0].power_limit_watts = 350.0
    output, errors = client.communicate("\n", timeout=60)
    assert "350 W" in output, errors
    until(lambda: state(world) == (350.0, None))
