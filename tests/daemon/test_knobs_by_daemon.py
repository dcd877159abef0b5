"""The knobs of a process without rights, which the daemon turns and restores."""

import pytest

from tests.daemon.conftest import GROUP, ORIGINAL_WATTS, STRANGER, needs_root, until
from tests.nvml_driver import DeviceSpec
from tests.support.variants import long_but_first

pytestmark = needs_root

PROGRAM = """
    import os, signal, sys, time
    from zeus_core.device import discover_gpus
    from zeus_core.settings.clock_knob import SmClockKnob
    from zeus_core.settings.limit_knob import PowerLimitKnob
    from zeus_core.kinds import SM_CLOCK
    from zeus_core.settings.clock_knob import LockKnob
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
    "end", long_but_first(["limits.restore(), clocks.restore()", "pass", "os.kill(os.getpid(), signal.SIGKILL)"])
)
def test_they_are_set_and_restored(world, end):
    program = f"{PROGRAM}\n    print('ready', flush=True)\n    input()\n    {end}"
    client = world.client(program)
    assert client.stdout.readline() == "ready\n", client.stderr.read()
    assert state(world) == (250.0, world.driver[0].spec.sm_clocks_mhz[-1])
    _, errors = client.communicate("\n", timeout=240)
    until(lambda: state(world) == (ORIGINAL_WATTS, None), errors)
    until(lambda: not world.entries())
    assert errors == ""


def test_a_process_that_may_not_use_the_daemon_is_told_both_ways(world):
    client = world.client(PROGRAM, uid=STRANGER, gids=())
    _, errors = client.communicate(timeout=240)
    assert "sudo nvidia-smi -i" in errors
    assert "or use the zeus-core daemon" in errors
    assert state(world) == (ORIGINAL_WATTS, None)
    assert not list(world.driver.ledger_path.glob("*")), "nothing is written where nothing can be changed"


AFTER_A_CRASH = f"""{PROGRAM}
    import logging
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    print("ready", flush=True)
    input()
    THEN
    print(limits.restore(), clocks.restore())
"""
ASKS = "print(limits.is_undisturbed()); limits.apply(200); print(limits.is_undisturbed())"
WAITS = "input()"


def crash(world, then, clocks="SmClockKnob(gpus[0])"):
    """Kill the daemon while a client has changed limits and clocks, and start it again. Returns the client."""
    client = world.client(AFTER_A_CRASH.replace("THEN", then).replace("SmClockKnob(gpus[0])", clocks))
    assert client.stdout.readline() == "ready\n", client.stderr.read()
    world.daemon.kill()
    world.daemon.wait()
    world.driver.clear_calls()
    world.start_daemon()
    restored = world.driver.calls("nvmlDeviceSetPowerManagementLimit")[0]  # the client's watch may set it again at once
    assert (restored.argument, world.driver[0].locked_clock_mhz) == (1000 * ORIGINAL_WATTS, None)
    client.stdin.write("\n")
    client.stdin.flush()
    return client


def test_a_daemons_restore_after_a_crash_is_ours_and_set_again(world):
    client = crash(world, ASKS)
    output, errors = client.communicate(timeout=240)
    assert output.splitlines()[-2:] == ["True", "True True"], errors
    assert output.startswith("False\n") or "250 W is set on GPU-" in output, "its watch, where the machine is busy"
    assert 200.0 in [line["new"] for line in world.audited("set")]
    assert state(world) == (ORIGINAL_WATTS, None)


def test_clocks_that_a_daemon_frees_after_a_crash_are_locked_again(world):
    then = "print(clocks.is_undisturbed()); clocks.apply(clocks.settings[-2]); print(clocks.is_undisturbed())"
    client = crash(world, then, "LockKnob(SM_CLOCK, gpus)")
    output, errors = client.communicate(timeout=240)
    answers = [line for line in output.splitlines() if line in {"False", "True", "True True"}]  # others are logged
    assert answers == ["False", "True", "True True"], errors
    assert state(world) == (ORIGINAL_WATTS, None)


def test_a_limit_is_set_again_in_the_background_after_a_daemon_crash(world):
    client = crash(world, WAITS)
    until(lambda: state(world)[0] == 250.0, "the setting of the limit")
    output, errors = client.communicate("\n", timeout=240)
    assert output.splitlines()[-1] == "True True", errors
    assert "the zeus-core daemon has ended and restored the power limit of" in output
    assert "250 W is set on GPU-" in output
    assert state(world) == (ORIGINAL_WATTS, None)


def test_a_limit_that_somebody_sets_after_a_crash_of_the_daemon_stays(world):
    client = crash(world, "input(); print(limits.is_undisturbed())")
    while "250 W is set on GPU-" not in client.stdout.readline():  # and was read back
        assert client.poll() is None
    world.driver[0].power_limit_watts = 350.0
    output, errors = client.communicate("\n", timeout=240)
    assert "DeviceHeldError" in errors, output
    until(lambda: state(world) == (350.0, None))


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
    output, errors = client.communicate("\n", timeout=240)
    assert "350 W" in output, errors
    until(lambda: state(world) == (350.0, None))


def test_a_client_that_knows_another_original_clock_than_the_daemon_is_informed(world):
    output, errors = world.run("""
        from zeus_core.device import discover_gpus
        from zeus_core.settings.clock_knob import SmClockKnob
        knob = SmClockKnob(discover_gpus({})[0], 1710)
        knob.apply(1410)
        knob.apply(1380)
        print(knob.restore())
    """)
    assert output == "True"
    assert errors.count("leaves the SM clock of NVIDIA H200") == 1
    assert "unlocked, as its administrator decided" in errors
    until(lambda: world.driver[0].locked_clock_mhz is None)


PROFILES = """
    import os, signal, sys
    from zeus_core.device import discover_gpus
    from zeus_core.kinds import POWER_PROFILE
    from zeus_core.settings.knob import CommonKnob
    knob = CommonKnob(POWER_PROFILE, discover_gpus({}))
    knob.apply(130)
    print("ready", flush=True)
    input()
    END
"""


@pytest.mark.parametrize("end", long_but_first(["os.kill(os.getpid(), signal.SIGKILL)", "knob.restore()", "pass"]))
def test_profiles_are_set_where_a_rule_names_them_and_restored(make_world, end):
    world = make_world(DeviceSpec("NVIDIA B200", profiles=0b10100010, requested_profiles=0b100000, needs_root=True))
    rule = f'allow = [{{groups = [{GROUP}], knobs = ["power_profile"]}}]\n'
    world.write_policy(f"group = {GROUP}\n{rule}")
    world.start_daemon()
    client = world.client(PROFILES.replace("END", end))
    assert client.stdout.readline() == "ready\n", client.stderr.read()
    assert world.driver[0].requested_profiles == 130
    _, errors = client.communicate("\n", timeout=240)
    until(lambda: world.driver[0].requested_profiles == 0b100000, errors)
    assert errors == ""


def test_profiles_are_refused_where_no_rule_names_them(make_world):
    world = make_world(DeviceSpec("NVIDIA B200", profiles=0b10100010, needs_root=True))
    world.start_daemon()
    _, errors = world.client(PROFILES).communicate("\n", timeout=240)
    assert "may not change the power profile" in errors
    assert world.driver[0].requested_profiles == 0
