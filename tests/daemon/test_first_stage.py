"""The first stage of the daemon: what a killed one has left is restored before anything else is loaded."""

import subprocess
import sys
import textwrap

from tests.daemon.conftest import ORIGINAL_WATTS, WAIT_SECONDS, needs_root, until

pytestmark = needs_root

HOLDER = """
    import sys
    from zeus_core.device import discover_gpus
    from zeus_core.settings.clock_knob import SmClockKnob
    from zeus_core.settings.limit_knob import PowerLimitKnob
    gpus = discover_gpus({})
    limit, clock = PowerLimitKnob(gpus[:1], 25), SmClockKnob(gpus[1])
    limit.apply(250)
    clock.apply(1410)
    print("ready", flush=True)
    sys.stdin.readline()
"""
# Those that take long: the command line, the driver's binding, the daemon itself, and what classes are made with.
LATE = [
    *("argparse", "logging", "numpy", "pathlib", "pynvml", "socket", "zeus_core.cli", "zeus_core.daemon"),
    *("dataclasses", "inspect", "subprocess", "threading", "zeus_core.codec", "zeus_core.validate"),
]


def state(world):
    return world.driver[0].power_limit_watts, world.driver[1].locked_clock_mhz


def left_behind(world):
    """Kill a daemon and its client."""
    process = world.client(HOLDER)
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    world.daemon.kill()
    process.kill()
    world.daemon.wait()
    assert state(world) == (250.0, 1410)
    assert len(world.entries()) == 2


def test_it_restores_and_loads_nothing_of_the_daemon(world):
    left_behind(world)
    program = f"""
        import gc, sys
        sys.path.insert(0, {sys.path[0]!r})
        from zeus_core.settings.first_stage import restore_left_behind, restored
        restore_left_behind()
        print(len(restored), [name for name in {LATE} if name in sys.modules], gc.isenabled())
    """
    environment = {**world.environment, "ZEUS_LEDGER_DIR": str(world.ledger)}
    command = [sys.executable, "-S", "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.stdout == "2 [] True\n", ended.stderr
    assert state(world) == (ORIGINAL_WATTS, None)
    assert world.entries() == []


def test_a_daemon_that_cannot_start_restores_all_the_same(world):
    left_behind(world)
    world.write_policy("group = [")
    process = world.spawn_daemon()
    assert "is not TOML" in process.communicate(timeout=WAIT_SECONDS)[1]
    assert state(world) == (ORIGINAL_WATTS, None)
    assert world.entries() == []


def test_what_it_has_restored_is_in_the_logs_of_the_daemon(world):
    left_behind(world)
    world.start_daemon()
    assert world.said.count("left behind by process") == 2
    assert [line["outcome"] for line in world.audited("ended") if line["why"] == "left behind"] == ["restored"] * 2


def test_a_second_daemon_leaves_the_leases_of_the_first_alone(world):
    process = world.client(HOLDER)
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    second = world.spawn_daemon()
    assert "is running already" in second.communicate(timeout=WAIT_SECONDS)[1]
    assert state(world) == (250.0, 1410)


def test_a_board_with_a_hanging_driver_delays_no_other_and_no_daemon(world):
    left_behind(world)
    world.driver[0].hang("nvmlDeviceSetPowerManagementLimit")
    try:
        world.start_daemon()
        assert state(world) == (250.0, None)
    finally:
        world.driver[0].release()
    until(lambda: state(world) == (ORIGINAL_WATTS, None), "the restoring once the driver answers")
    until(lambda: world.entries() == [], "the removal of the entry")
