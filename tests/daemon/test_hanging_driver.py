"""A driver that hangs, for a while or for good: what others notice of it, and what becomes of a change under way."""

import json
import signal
import time

import pytest

from tests.daemon.conftest import DEVICE, ORIGINAL_WATTS, WAIT_SECONDS, needs_root, until
from tests.daemon.test_pages import UNIT
from tests.support.systemd_stand_in import seconds_of

pytestmark = needs_root

LIMIT = {"knob": "power_limit"}
SET = "nvmlDeviceSetPowerManagementLimit"

# Forks clients of a GPU whose driver hangs, and changes another one while they wait.
CROWD = """
    import gc, os, sys, time
    from zeus_core.device.remote.client import RemoteControl

    hanging, other, count = {hanging!r}, {other!r}, {count}
    gc.freeze()
    children = []
    for _ in range(count):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                RemoteControl(hanging, "power_limit").set(300)
            except Exception as error:
                os._exit(0 if "has not answered" in str(error) else 1)
            os._exit(2)
    remote, seconds = RemoteControl(other, "power_limit"), []
    for number in range(200):
        begin = time.monotonic()
        remote.set(300 + number % 100)  # raises an error past its deadline
        seconds.append(time.monotonic() - begin)
    print(max(seconds), flush=True)
    print(sum(os.waitpid(child, 0)[1] for child in children), flush=True)
"""


def hang_with(world, connection):
    """Let the driver of the first GPU hang, in a change that a connection asks for."""
    world.driver[0].hang(SET)
    connection.send(
        json.dumps({"id": 7, "op": "set", "device": world.uuids[0], "value": 300, **LIMIT}).encode() + b"\n"
    )
    until(lambda: world.audited("set") and world.audited("set")[-1]["device"] == world.uuids[0])


def set_other(world, connection, watts):
    return connection.ask("set", device=world.uuids[1], value=watts, **LIMIT)


def test_while_one_driver_hangs_others_are_served_and_the_daemon_can_end(world):
    crowd = [world.connect() for _ in range(255)]
    other = world.connect()
    hang_with(world, crowd[0])
    try:
        for connection in crowd[1:]:
            connection.send(
                json.dumps({"id": 7, "op": "set", "device": world.uuids[0], "value": 250, **LIMIT}).encode()
            )
            connection.send(b"\n")
        for watts in range(250, 300):
            assert "result" in set_other(world, other, watts)
        begin = time.monotonic()
        world.daemon.send_signal(signal.SIGTERM)
        _, errors = world.daemon.communicate(timeout=WAIT_SECONDS)
        seconds = time.monotonic() - begin
        assert world.daemon.returncode == 0
        assert f"{world.uuids[0]} does not answer: what is to be restored there is kept in {world.ledger}" in errors
        assert world.driver[1].power_limit_watts == ORIGINAL_WATTS
        assert [name for name in world.entries() if name.startswith(world.uuids[0])], "the next one restores it"
        stop_seconds = next(line for line in UNIT.read_text().splitlines() if line.startswith("TimeoutStopSec="))
        print(f"ended {seconds:.1f} s after SIGTERM; systemd waits {seconds_of(stop_seconds.partition('=')[2]):g} s")
    finally:
        world.driver[0].release()
    world.start_daemon()
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS
    assert world.entries() == []


@pytest.mark.long
def test_beside_256_processes_each_change_of_another_device_meets_its_deadline(make_world, capsys):
    world = make_world(DEVICE, DEVICE)
    world.start_daemon()
    hang_with(world, world.connect())
    try:
        program = CROWD.format(hanging=world.uuids[0], other=world.uuids[1], count=255)
        longest, wrong = world.run(program, is_patient=False)[0].split()
        assert wrong == "0", "the others learn that the driver does not answer"
    finally:
        world.driver[0].release()
    with capsys.disabled():
        print(f" the longest of 200 changes took {float(longest) * 1e3:.0f} ms")


def test_a_change_that_returns_after_its_client_has_died_leaves_the_original(world):
    client = world.connect()
    hang_with(world, client)
    try:
        client.close()
        other = world.connect()
        assert "result" in set_other(world, other, 300)
        assert [lease["device"] for lease in other.ask("list")["result"]["leases"]] == world.uuids, "it is kept"
        assert [name.startswith(world.uuids[0]) for name in world.entries()].count(True) == 1
    finally:
        world.driver[0].release()
    until(lambda: world.audited("ended"), "the end of the lease")
    until(lambda: not [name for name in world.entries() if name.startswith(world.uuids[0])])
    limits = [call.argument for call in world.driver.calls(SET) if call.device_index == 0]
    assert limits == [300_000, round(ORIGINAL_WATTS * 1e3)], "the late change, and then the original"
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS


def test_a_change_waiting_behind_a_hanging_one_dies_with_its_client(world):
    first, second = world.connect(), world.connect()
    hang_with(world, first)
    try:
        second.send(
            json.dumps({"id": 1, "op": "set", "device": world.uuids[0], "value": 200, **LIMIT}).encode() + b"\n"
        )
        first.close()
        second.close()
        other = world.connect()
        assert "result" in set_other(world, other, 300)
    finally:
        world.driver[0].release()
    until(lambda: world.audited("ended"))
    assert 200_000 not in [call.argument for call in world.driver.calls(SET)]
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS


def test_a_client_that_sends_endless_requests_during_another_is_refused(world):
    client = world.connect()
    hang_with(world, client)
    try:
        client.send(b'{"id":1,"op":"list"}\n' * 4000)  # the kernel keeps them
        assert "result" in set_other(world, world.connect(), 300)
    finally:
        world.driver[0].release()
    replies = list(iter(client.read, None))
    assert replies[-1]["error"] == "protocol"
    assert "more than 65536 bytes of requests came before a reply" in replies[-1]["message"]
    until(lambda: world.audited("ended"))
    assert [line["connection"] for line in world.audited("refused")] == [0]
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS
