"""What a killed daemon has left is restored by the next one, ahead of all that may keep that from starting."""

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
