"""Changes that the daemon makes on a board in MIG mode, whose instances belong to several users."""

import dataclasses
import os

import pytest

from tests.daemon.conftest import DEVICE, GROUP, ORIGINAL_WATTS, WAIT_SECONDS, needs_root, until

pytestmark = needs_root

PARTITIONED = dataclasses.replace(DEVICE, mig_uuids=("MIG-aaaa-1", "MIG-bbbb-2"))
FIRST, SECOND = (1, 0), (2, 0)  # the GPU instance and the compute instance of each
OTHER = 7000001  # the id of a process of somebody else, above all that Linux gives
ALLOWING = f"group = {GROUP}\n[[allow]]\ngroups = [{GROUP}]\nmay_slow_other_instances = true\n"
SETTINGS = {"power_limit": 250, "sm_clock": 1410}

TRAINING = """
    import time
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
    from zeus_core.search import GridSearch

    print("ready", flush=True)
    input()
    with GlobalPowerLimitOptimizer(ZeusMonitor(), None, 0, 0, profile_steps=2, search=GridSearch, quiet=True) as search:
        for step in range(12):
            search.on_step_begin()
            time.sleep(0.002)
            search.on_step_end()
    print("trained")
"""


@pytest.fixture
def start(make_world):
    """Starts a daemon with a board in MIG mode."""

    def started(policy="", **changes):
        world = make_world(dataclasses.replace(PARTITIONED, **changes))
        if policy:
            world.write_policy(policy)
        world.start_daemon()
        return world

    return started


def changes_of(world):
    functions = "nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks"
    return [call for function in functions for call in world.driver.calls(function) if call.code == 0]


def trained(world, **variables):
    """Train as a user without rights, on the first instance, while somebody else computes on the second."""
    process = world.client(TRAINING, **variables)
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    world.driver[0].set_processes((process.pid, *FIRST), (OTHER, *SECOND))
    output, said = process.communicate("\n", timeout=WAIT_SECONDS)
    assert output == "trained\n", said
    until(lambda: world.entries() == [])
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS
    return said


@pytest.mark.parametrize("knob", SETTINGS)
def test_a_change_that_would_slow_down_others_is_refused_and_leaves_nothing(start, knob):
    world = start()
    client, change = world.connect(), {"device": world.uuids[0], "knob": knob, "value": SETTINGS[knob]}
    world.driver[0].set_processes((os.getpid(), *FIRST), (OTHER, *SECOND))
    reply = client.ask("set", **change)
    assert reply["error"] == "denied"
    assert f"NVIDIA H200 ({world.uuids[0]}) is in MIG mode" in reply["message"]
    assert f"process {OTHER} on instance 2/0" in reply["message"]
    assert "may_slow_other_instances = true" in reply["message"]
    assert (changes_of(world), world.entries(), client.ask("list")["result"]["leases"]) == ([], [], [])
    world.driver[0].set_processes((os.getpid(), *FIRST), (OTHER, *FIRST))
    assert "result" in client.ask("set", **change), "all that computes is on the instance of the client"


@pytest.mark.parametrize("knob", SETTINGS)
def test_an_administrator_can_allow_it(start, knob):
    world = start(ALLOWING)
    world.driver[0].set_processes((os.getpid(), *FIRST), (OTHER, *SECOND))
    client = world.connect()
    assert "result" in client.ask("set", device=world.uuids[0], knob=knob, value=SETTINGS[knob])
    client.close()
    until(lambda: world.entries() == [])
    assert (world.driver[0].power_limit_watts, world.driver[0].locked_clock_mhz) == (ORIGINAL_WATTS, None)


@pytest.mark.parametrize("policy", ["", ALLOWING], ids=["by default", "allowed by the administrator"])
def test_a_training_that_has_not_asked_for_it_observes(start, policy):
    world = start(policy)
    said = trained(world)
    assert changes_of(world) == []
    assert f"process {OTHER} on instance 2/0" in said
    assert "ZEUS_MIG_LIMITS=1" in said


def test_a_training_that_asked_observes_unless_the_administrator_allows_it(start):
    world = start()
    said = trained(world, ZEUS_MIG_LIMITS="1")
    assert changes_of(world) == []
    assert "may_slow_other_instances = true" in said


def test_a_training_that_has_asked_for_it_and_is_allowed_to_searches(start):
    world = start(ALLOWING)
    said = trained(world, ZEUS_MIG_LIMITS="1")
    assert {call.process_id for call in changes_of(world)} == {world.daemon.pid}
    assert said.count("is in MIG mode") == 1


def test_the_daemon_sees_the_processes_that_a_training_cannot_see(start):
    world = start(processes_need_root=True)
    said = trained(world)
    assert changes_of(world) == []
    assert "cannot be read" in said
    assert f"process {OTHER} on instance 2/0" in said
