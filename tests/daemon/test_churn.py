"""Many clients that come and die at random: no restore is lost, no owner is wrong, and nothing grows."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.conftest import DEVICE, GROUP, MEMBER, ORIGINAL_WATTS, needs_root, until
from tests.support.few_processes import FewProcesses
from zeus_core.errors import DeviceHeldError
from zeus_core.kinds import POWER_LIMIT
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import Ledger
from zeus_core.settings.restoring import RestoreOutcome

# Numbers of processes that are used again, simulated


def use_numbers_again(folder, count, claim_every):
    chooser, processes = random.Random(7), FewProcesses()
    for pid in range(100, 124):
        processes.begin(pid)
    ledger = Ledger(str(folder), processes)
    values = dict.fromkeys(["GPU-a", "GPU-b", "GPU-c", "GPU-d"], ORIGINAL_WATTS)
    held = {}  # what the test knows: the entry of the last owner of each device
    template = LedgerEntry.of_this_process("", "A40", POWER_LIMIT, ORIGINAL_WATTS)
    takeovers = refusals = 0

    def restore(entry):
        values[entry.device_uuid] = entry.original
        return RestoreOutcome(entry, "restored")

    for number in range(count):
        owner = processes.begin(chooser.choice(list(processes.began)))
        for entry in held.values():
            is_dead = processes.began[entry.owner.pid] != entry.owner.start_ticks
            assert ledger.is_stale(entry) == is_dead
        if number % claim_every:
            continue
        uuid = chooser.choice(list(values))
        entry = replace(template, device_uuid=uuid, owner=owner, owner_token=str(owner.start_ticks))
        before, is_true = held.get(uuid), True
        try:
            ledger.claim(entry, restore)
        except DeviceHeldError as refusal:
            refusals += 1
            is_true = not ledger.is_stale(before) and f"process {before.owner.pid} " in str(refusal)
            if chooser.random() < 0.3:  # the owner ends well
                assert ledger.finish(restore(ledger.find(before.key))).is_done
                del held[uuid]
        else:
            assert before is None or ledger.is_stale(before), "a living owner loses nothing"
            assert values[uuid] == ORIGINAL_WATTS, "what the dead one left was restored first"
            takeovers += before is not None
            values[uuid] = chooser.choice([200.0, 250.0, 300.0])
            held[uuid] = entry
        assert is_true, "who is refused is told of a living owner"
    for pid in processes.began:
        processes.begin(pid)
    ledger.restore_stale(restore)
    assert set(values.values()) == {ORIGINAL_WATTS}
    assert ledger.entries() == []
    assert takeovers > count / claim_every / 10
    assert refusals > count / claim_every / 100


def test_numbers_that_are_used_again_never_hold_or_lose_a_lease(tmp_path):
    use_numbers_again(tmp_path / "ledger", 1_500, claim_every=20)


@pytest.mark.long
def test_thirty_thousand_reused_numbers_never_hold_or_lose_a_lease(tmp_path):
    use_numbers_again(tmp_path / "ledger", 30_000, claim_every=25)


# Clients of a real daemon

# Forks clients: each holds a random GPU as soon as nobody else does, changes it, and ends in a random way.
CLIENTS = """
    import contextlib, gc, os, random, signal, sys, time
    from zeus_core.device.remote.client import RemoteControl
    from zeus_core.errors import DeviceHeldError, DriverFaultError

    uuids, count, alive, seed = {uuids!r}, {leases}, {clients}, {seed}

    def live(number):
        chooser = random.Random(seed + number)
        knob = chooser.choice(["power_limit", "power_limit", "sm_clock"])
        remote = RemoteControl(chooser.choice(uuids), knob)
        while True:
            try:
                for _ in range(chooser.randrange(1, 4)):
                    remote.set(chooser.randrange(200, 450) if knob == "power_limit" else chooser.choice([345, 1410]))
                break
            except (DeviceHeldError, DriverFaultError):  # or the machine is busy with so many clients
                time.sleep(chooser.random() * 0.05)
        end = chooser.randrange(6)
        if end == 0:
            with contextlib.suppress(DriverFaultError):  # the machine is busy: the daemon restores all the same
                remote.release()
        elif end == 1:
            remote.close()
        elif end == 2:
            os.execv("/bin/true", ["true"])
        elif end == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        elif end == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)

    gc.freeze()
    running, wrong = set(), []
    for number in range(count):
        while len(running) >= alive:
            pid, status = os.wait()
            running.discard(pid)
            if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGTERM, -signal.SIGKILL):
                wrong.append(status)
        pid = os.fork()
        if pid == 0:
            live(number)
        running.add(pid)
    while running:
        running.discard(os.wait()[0])
    print("done", wrong, flush=True)
"""

LIMIT, LOCK, UNLOCK = (
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
)


def memory_and_files(pid):
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    resident = int(status.split("RssAnon:")[1].split()[0])  # without the mapped state of the driver, which fills
    threads = int(status.split("Threads:")[1].split()[0])
    return resident, threads, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def churn(world, leases, clients, seed):
    program = CLIENTS.format(uuids=world.uuids, leases=leases, clients=clients, seed=seed)
    output, errors = world.client(program).communicate(timeout=560)
    assert output == "done []\n", errors
    until(lambda: not world.entries())
    assert [device.power_limit_watts for device in world.driver] == [ORIGINAL_WATTS] * len(world.driver)
    assert [device.locked_clock_mhz for device in world.driver] == [None] * len(world.driver)


def expected_calls(lines):
    """What the audit log says that the driver was told, in its order."""
    for line in lines:
        is_limit = line["knob"] == "power_limit"
        if line["event"] == "set":
            yield (LIMIT, round(line["new"] * 1000)) if is_limit else (LOCK, line["new"])
        elif line["outcome"] == "restored":
            yield (LIMIT, round(line["new"] * 1000)) if is_limit else (UNLOCK, 0)


def check_audit(world):
    """The log agrees with what the driver saw, and no two clients had one device at a time."""
    calls = [call for call in world.driver.calls() if call.function in (LIMIT, LOCK, UNLOCK) and call.code == 0]
    lines = [line for line in world.audited() if line["event"] in ("set", "ended")]
    for index, uuid in enumerate(world.uuids):
        of_device = [line for line in lines if line["device"] == uuid]
        seen = [(call.function, call.argument) for call in calls if call.device_index == index]
        expected = list(expected_calls(of_device))
        assert seen
        assert expected[-len(seen) :] == seen, "the driver's log keeps the latest calls"
        owner = None
        for line in of_device:
            assert owner in (None, line["connection"])
            owner = line["connection"] if line["event"] == "set" else None
    return sum(line["event"] == "ended" for line in lines)


@needs_root
def test_clients_that_die_at_random_leave_nothing_and_are_all_on_record(make_world):
    world = make_world(*[DEVICE] * 4)
    world.start_daemon()
    churn(world, leases=60, clients=12, seed=1)
    assert check_audit(world) == 60


@needs_root
@pytest.mark.long
def test_two_thousand_leases_of_two_hundred_clients(make_world, capsys):
    world = make_world(*[DEVICE] * 16)
    world.write_policy(f"group = {GROUP}\n[[allow]]\nusers = [{MEMBER}]\n[limits]\nconnections_per_user = 400\n")
    world.start_daemon()
    churn(world, leases=2000, clients=200, seed=1)  # until the allocator has the arenas that so many threads need
    before = memory_and_files(world.daemon.pid)
    churn(world, leases=2000, clients=200, seed=10_000)
    until(
        lambda: all(map(int.__le__, memory_and_files(world.daemon.pid)[1:], before[1:])), "the end of threads and files"
    )
    after = memory_and_files(world.daemon.pid)
    # Eight rounds of 1,500 leases of 100 clients left 17172, 17856, 18080, 18092, 18092, 18104, 18108 and 18168 kB;
    # this test alone has seen 192 and 1000 kB more, of fragments. A lease that is never forgotten takes 1 to 2 kB.
    assert after[0] - before[0] < 1536, "kilobytes"
    assert check_audit(world) == 4000
    with capsys.disabled():
        print(f" resident {before[0]} -> {after[0]} kB, threads {after[1]}, files {after[2]}")
