"""The daemon's start, where something is wrong; its end; and what is restored when clients or the daemon are killed."""

import json
import math
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.conftest import (
    DEVICE,
    GROUP,
    MEMBER,
    MEMBERS_ALLOWED,
    ORIGINAL_WATTS,
    STRANGER,
    WAIT_SECONDS,
    made_world,
    needs_root,
    until,
)
from zeus_core.kinds import POWER_LIMIT, POWER_PROFILE
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import Ledger

pytestmark = needs_root

LIMIT, CLOCK = {"knob": "power_limit"}, {"knob": "sm_clock"}


def expect_failure(world, *words, arguments=(), code=2):
    process = world.spawn_daemon(*arguments)
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    for word in words:
        assert str(word) in errors
    assert world.driver.calls("nvmlDeviceSetPowerManagementLimit") == []


# The start


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grup = 1", ["'grup' is not a key of this file", "group, original_sm_clock_mhz, allow, limits, commands"]),
        ("group = 'no-such-group'", ["group is 'no-such-group'", "that this machine knows"]),
        ("group = [", ["is not TOML"]),
        ("allow = 3", ["allow is 3; it must be a list"]),
        ("[[allow]]\nknobs = ['power_limit']", ["allow[0] names nobody"]),
        ("[[allow]]\nusers = ['no-such-user']", ["allow[0].users is 'no-such-user'"]),
        ("[[allow]]\nusers = [-1]", ["allow[0].users is -1"]),
        ("[[allow]]\nusers = [0]\nknobs = ['fan']", ["allow[0].knobs is 'fan'", '"power_limit" or "sm_clock"']),
        ("[[allow]]\nusers = [0]\npower_limit_watts = [300, 200]", ["power_limit_watts is [300, 200]", "[150, 300]"]),
        ("[[allow]]\nusers = [0]\npower_limit_watts = [nan, 200]", ["power_limit_watts is [nan, 200]"]),
        ("[[allow]]\nusers = [0]\nmay_exceed_original = 1", ["may_exceed_original is 1; it must be true or false"]),
        ("[[allow]]\nusers = [0]\nwatts = 3", ["'watts' is not a key of allow[0]"]),
        ("allow = []\n[limits]\nrequests_per_second = 0", ["limits.requests_per_second is 0"]),
        ("allow = []\n[commands]\nset_power_limit = ['nvidia-smi']", ["commands.set_power_limit", "full path"]),
        ("allow = []\n[commands]\nset_power_limit = ['/bin/true', '{uuid}']", ["commands.set_power_limit", "{watts}"]),
        ("allow = []\n[commands]\nfailure_pattern = '('", ["commands.failure_pattern", "regular expression"]),
        ("allow = []\n[commands]\nsudo = ['/bin/true']", ["'sudo' is not a key of commands"]),
        ("has_end = true\nallow = []", ["its last line is not [end]: it has been cut short"]),
        ("has_end = true\nallow = []\n[end]\n# more", ["its last line is not [end]"]),
        ("has_end = true\nallow = []\n[end]\n[limits]", ["its last line is not [end]"]),
        ("allow = []\nhas_end = true\n[end]", ["its first key must be has_end = true"]),
        ("has_end = false\nallow = []\n[end]", ["its first key must be has_end = true"]),
        ("allow = []\n[end]", ["its first key must be has_end = true"]),
        ("has_end = true\nallow = []\nend = 3 # \n[end]", ["is not TOML"]),
    ],
)
def test_a_policy_that_says_something_else_is_refused(tmp_path, text, words):
    from zeus_core.daemon._policy_file import read_policy
    from zeus_core.errors import UsageError

    path = tmp_path / "daemon.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refusal:
        read_policy(path)
    for word in words:
        assert word in str(refusal.value)


def test_what_is_no_file_with_rules_is_refused(make_world):
    """None of these may be taken for the default policy."""
    world = make_world()
    policy = world.policy
    for text in ("", "# nothing\n", f"group = {GROUP}\n", "[limits]\nrequests_per_second = 10\n"):
        world.write_policy(text)
        expect_failure(world, f"{policy} has no rule, [[allow]]", "or allow = [] for nobody")
    policy.unlink()
    expect_failure(world, "No such file", policy, code=1)
    policy.symlink_to(world.folder / "missing")
    expect_failure(world, "No such file", world.folder / "missing", code=1)
    policy.unlink()
    os.mkfifo(policy)
    expect_failure(world, f"{policy} is a folder, a pipe or a device, not a file")
    policy.unlink()
    policy.symlink_to("/dev/null")
    expect_failure(world, "/dev/null is a folder, a pipe or a device, not a file")
    policy.unlink()
    policy.mkdir()
    expect_failure(world, f"{policy} is a folder, a pipe or a device, not a file")
    policy.rmdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(policy))
        expect_failure(world, "No such device or address", policy, code=1)


def test_a_policy_that_allows_nobody_anything_starts_a_daemon_for_root_alone(make_world):
    world = make_world()
    world.write_policy(f"group = {GROUP}\nallow = []\n")
    world.start_daemon()
    said, _ = world.run(
        """
        import socket, os
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ["ZEUS_DAEMON_SOCKET"])
        print(connection.makefile().read())
        """
    )
    assert f"user {MEMBER} may not use the zeus-core daemon" in said


def test_a_policy_that_is_there_in_whatever_form_is_not_the_default(tmp_path):
    from zeus_core.daemon._policy_file import find_policy

    folder = tmp_path / "zeus-core"
    path = folder / "daemon.toml"
    assert find_policy(path) is None
    folder.symlink_to(tmp_path / "missing")
    assert find_policy(path) == path, "the folder is a link that leads nowhere"
    folder.unlink()
    folder.write_text("")
    assert find_policy(path) == path, "the folder is a file"
    folder.unlink()
    folder.mkdir()
    assert find_policy(path) is None
    path.symlink_to(tmp_path / "missing")
    assert find_policy(path) == path, "a link that leads nowhere"


def test_the_default_policy_in_a_folder_closed_to_the_daemon_is_refused(make_world):
    """The daemon of an ordinary user, which runs commands: what it cannot see is not absent."""
    world = make_world()
    closed = world.folder / "closed"
    closed.mkdir(mode=0o700)
    program = f"""
        import pathlib, sys
        from zeus_core.cli import main
        from zeus_core.daemon import _daemon_command
        _daemon_command._POLICY = pathlib.Path({str(closed / "daemon.toml")!r})
        sys.argv = ["zeus-core", "daemon", "--audit", "-"]
        sys.exit(main())
    """
    _, errors = world.client(program).communicate(timeout=WAIT_SECONDS)
    assert "Permission denied" in errors
    assert str(closed / "daemon.toml") in errors


def test_a_rule_for_a_gpu_missing_from_the_machine_is_reported(make_world):
    world = make_world(DEVICE, DEVICE)
    here, away = world.uuids[1], "GPU-00000000-0000-0000-0000-000000000000"
    world.write_policy(f'group = {GROUP}\n[[allow]]\nusers = [{MEMBER}]\ndevices = ["{here}", "{away}"]\n')
    world.start_daemon()
    assert f"the policy has a rule for {away}, which is not here; here is {', '.join(world.uuids)}" in world.said
    assert f"a rule for {here}" not in world.said


def test_a_policy_that_others_could_change_is_refused(make_world):
    world = make_world()
    world.policy.chmod(0o664)
    expect_failure(world, f"{world.policy} can be changed by others: sudo chmod go-w", code=1)
    world.policy.chmod(0o644)
    os.chown(world.policy, STRANGER, -1)
    expect_failure(world, f"{world.policy} belongs to user {STRANGER}", code=1)
    os.chown(world.policy, 0, -1)
    world.folder.chmod(0o777)
    expect_failure(world, f"{world.folder} can be changed by others", code=1)
    world.folder.chmod(0o755)


def test_without_a_policy_the_members_of_one_group_may_do_the_default(make_world, monkeypatch):
    from zeus_core.daemon import _policy_file
    from zeus_core.daemon._peer import Peer
    from zeus_core.errors import PermissionDeniedError

    monkeypatch.setattr(_policy_file, "DEFAULT_GROUP", "daemon")  # a group that every Linux has
    policy = _policy_file.read_policy(None)
    member, stranger = Peer(1, MEMBER, frozenset({policy.group})), Peer(1, STRANGER, frozenset({STRANGER}))
    assert policy.allowance(member, "GPU-1", POWER_LIMIT, 450.0).highest == 450.0
    with pytest.raises(PermissionDeniedError, match="power profile"):  # which a rule must name
        policy.allowance(member, "GPU-1", POWER_PROFILE, 0.0)
    root = Peer(1, 0, frozenset({0}), is_root=True)
    assert policy.allowance(root, "GPU-1", POWER_PROFILE, 0.0).highest == math.inf
    assert not policy.is_known(stranger)
    with pytest.raises(PermissionDeniedError):
        policy.allowance(stranger, "GPU-1", POWER_LIMIT, 450.0)
    monkeypatch.setattr(_policy_file, "DEFAULT_GROUP", "no-such-group")
    policy = _policy_file.read_policy(None)
    assert policy.group is None
    assert not policy.is_known(member)


def test_a_second_daemon_is_refused(world):
    expect_failure(world, f"a zeus-core daemon is running already, as process {world.daemon.pid}")
    assert "result" in world.connect().ask("list")


def test_paths_that_no_socket_can_have_are_refused(make_world):
    world = make_world()
    expect_failure(world, "a socket's path has 107 bytes at most", arguments=["--socket", world.folder / ("x" * 120)])
    expect_failure(world, "there is no folder", arguments=["--socket", world.folder / "missing" / "daemon.sock"])
    (world.folder / "file").write_text("precious")
    expect_failure(world, "something else than a socket", arguments=["--socket", world.folder / "file"])
    assert (world.folder / "file").read_text() == "precious"
    world.socket.parent.chmod(0o777)
    expect_failure(world, "can be changed by others: sudo chmod go-w", arguments=["--socket", world.socket], code=1)
    world.socket.parent.chmod(0o755)


def test_the_socket_of_a_daemon_that_was_killed_is_replaced(make_world):
    world = make_world()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(world.socket))
    world.start_daemon()
    assert "result" in world.connect().ask("list")


def test_a_machine_without_a_gpu_has_a_daemon_for_its_cpus(make_world):
    world = make_world()
    world.driver.fail(None, 9)
    world.start_daemon()
    assert "no GPU" in world.said
    assert world.connect().ask("list")["result"]["devices"] == []


def entry_of(world, **changes):
    entry = LedgerEntry.of_this_process(world.uuids[0], "NVIDIA H200", POWER_LIMIT, ORIGINAL_WATTS)
    gone = replace(entry.owner, pid=2**22 + 1)
    return replace(entry, **{"owner": gone, "values": (250.0,), **changes})


def test_unreadable_ledger_entries_are_reported_and_remain_and_the_rest_is_restored(make_world):
    world = make_world()
    world.driver[0].power_limit_watts = 250.0
    Ledger(str(world.ledger)).note(entry_of(world))
    broken = world.ledger / "GPU-broken.power_limit.json"
    broken.write_text("{")
    world.start_daemon()
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS
    assert str(broken) in world.said
    assert world.entries() == [broken.name]


def test_entries_of_another_boot_are_restored_where_still_in_force(make_world):
    world = make_world()
    world.driver[0].power_limit_watts = 250.0
    ledger = Ledger(str(world.ledger))
    entry = entry_of(world)
    ledger.note(replace(entry, owner=replace(entry.owner, boot_id="another", pid=os.getpid())))
    world.start_daemon()
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS
    assert world.entries() == []


def test_an_entry_of_a_gpu_that_is_gone_is_kept_as_evidence(make_world):
    world = make_world()
    ledger = Ledger(str(world.ledger))
    ledger.note(entry_of(world, device_uuid="GPU-gone"))
    world.start_daemon()
    assert "the GPU is not there" in world.said
    assert [entry.failure for entry in ledger.entries()] == ["the GPU is not there"]


def test_on_a_full_disk_nothing_is_changed_and_earlier_changes_are_restored(world):
    client = world.connect()
    client.ask("set", device=world.uuids[0], value=250, **LIMIT)
    resource.prlimit(world.daemon.pid, resource.RLIMIT_FSIZE, (10, 10))
    world.driver.clear_calls()
    for device, knob, value in ((0, LIMIT, 300), (0, CLOCK, 1410), (1, LIMIT, 300)):
        reply = client.ask("set", device=world.uuids[device], value=value, **knob)
        assert reply["error"] == "fault"
        assert "changes nothing" in reply["message"]
    assert [call for call in world.driver.calls() if "Set" in call.function] == []
    client.close()
    until(lambda: world.driver[0].power_limit_watts == ORIGINAL_WATTS)
    assert [device.locked_clock_mhz for device in world.driver] == [None, None]


# The end

HOLD = """
    import os, signal, sys, time
    from zeus_core.device.remote.client import RemoteControl
    limit, clock = RemoteControl({uuid!r}, "power_limit"), RemoteControl({uuid!r}, "sm_clock")
    limit.set(250)
    clock.set(1410)
    print("ready", flush=True)
    {end}
"""
WAIT = "time.sleep(600)"


def hold(world, end=WAIT):
    process = world.client(HOLD.format(uuid=world.uuids[0], end=end))
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    assert (world.driver[0].power_limit_watts, world.driver[0].locked_clock_mhz) == (250.0, 1410)
    return process


def is_restored(world):
    return (world.driver[0].power_limit_watts, world.driver[0].locked_clock_mhz) == (ORIGINAL_WATTS, 1710)


@pytest.fixture
def locked_world(make_world):
    """The administrator keeps clocks locked: the original is neither the default nor the maximum."""
    world = make_world(DEVICE, DEVICE)
    world.write_policy(f"{MEMBERS_ALLOWED}original_sm_clock_mhz = 1710\n")
    world.start_daemon()
    return world


@pytest.fixture(scope="module")
def lasting_world(nvml_library):
    """The same for all clients that end, as none of them may harm the daemon."""
    world = made_world(nvml_library, [DEVICE])
    world.write_policy(f"{MEMBERS_ALLOWED}original_sm_clock_mhz = 1710\n")
    world.start_daemon()
    yield world
    world.end()
    shutil.rmtree(world.folder)


ENDS = {
    "returns": "pass",
    "exception": "raise RuntimeError",
    "sys.exit": "sys.exit(3)",
    "os._exit": "os._exit(0)",
    "abort": "os.abort()",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "exec": "os.execv('/bin/sleep', ['sleep', '600'])",
    "exec while a child lives": "(os.fork() == 0 and time.sleep(600)) or os.execv('/bin/sleep', ['sleep', '600'])",
    "its child lives on": "os.fork() == 0 and time.sleep(600)",
    **{
        name: f"os.kill(os.getpid(), signal.{name})"
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGPROF", "SIGKILL")
    },
}


# The kernel closes a connection alike however its process ends; only what a child inherits, and `exec`, are different.
QUICK = ("returns", "exec", "its child lives on", "SIGKILL")


@pytest.mark.parametrize(
    "end",
    [pytest.param(end, id=name, marks=[] if name in QUICK else pytest.mark.long) for name, end in ENDS.items()],
)
def test_a_client_that_ends_in_whatever_way_leaves_nothing(lasting_world, end):
    process = hold(lasting_world, f"sys.stdin.readline(); {end}")
    process.stdin.write("\n")
    process.stdin.flush()
    until(lambda: is_restored(lasting_world), f"the restoring after {end}")
    until(lambda: lasting_world.entries() == [])
    process.kill()


def test_a_child_that_ends_leaves_the_lease_of_its_parent_alone(locked_world):
    process = hold(
        locked_world, "os.fork() or sys.exit(); os.wait(); print(limit.set(260), flush=True); time.sleep(600)"
    )
    assert process.stdout.readline() == "260.0\n"
    assert locked_world.driver[0].power_limit_watts == 260.0


def test_a_child_has_a_connection_of_its_own(locked_world):
    program = """
        sys.stdin.readline()
        child = os.fork()
        if child == 0:
            try:
                limit.set(300)
            except Exception as error:
                print(type(error).__name__, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(limit.set(260), flush=True)
    """
    process = hold(locked_world, program.replace("\n        ", "\n    ").strip())
    assert process.communicate("\n", timeout=WAIT_SECONDS)[0] == "DeviceHeldError\n260.0\n"


def test_a_daemon_that_is_told_to_end_restores_first(locked_world):
    process = hold(locked_world)
    locked_world.daemon.terminate()
    _, errors = locked_world.daemon.communicate(timeout=WAIT_SECONDS)
    assert (locked_world.daemon.returncode, errors) == (0, "")
    assert is_restored(locked_world)
    assert locked_world.entries() == []
    assert not locked_world.socket.exists()
    assert {line["why"] for line in locked_world.audited("ended")} == {"the daemon ends"}
    process.kill()


def test_a_killed_daemon_restores_before_it_serves_and_its_clients_come_back(locked_world):
    world = locked_world
    process = hold(world, "sys.stdin.readline(); print(limit.set(260), limit.set(270)); sys.stdin.readline()")
    world.daemon.kill()
    world.daemon.wait()
    assert world.driver[0].power_limit_watts == 250.0, "nobody is left who could restore it"
    world.driver.clear_calls()
    world.start_daemon()
    assert is_restored(world), "once it says that it is there"
    assert world.said.count("left behind by process") == 2
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "260.0 270.0\n"
    process.kill()
    until(lambda: is_restored(world) and world.entries() == [])


def test_a_client_waits_for_a_daemon_that_is_being_restarted(locked_world):
    world = locked_world
    process = hold(world, "sys.stdin.readline(); print(limit.set(260))")
    world.daemon.kill()
    world.daemon.wait()
    world.spawn_daemon()
    process.stdin.write("\n")
    process.stdin.flush()
    output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert output == "260.0\n", errors


def test_client_and_daemon_killed_leave_nothing_after_the_next_start(locked_world):
    process = hold(locked_world)
    locked_world.daemon.kill()
    process.kill()
    locked_world.daemon.wait()
    assert not is_restored(locked_world)
    locked_world.start_daemon()
    assert is_restored(locked_world)
    assert locked_world.entries() == []
    assert {line["why"] for line in locked_world.audited("ended")} == {"left behind"}


def test_a_limit_set_since_by_an_administrator_stays_at_the_next_start(locked_world):
    hold(locked_world).kill()
    locked_world.daemon.kill()
    locked_world.daemon.wait()
    locked_world.driver[0].power_limit_watts = 220.0
    locked_world.start_daemon()
    assert locked_world.driver[0].power_limit_watts == 220.0
    assert "somebody else has set 220 W" in locked_world.said or locked_world.entries() == []


def test_everybody_is_restored_although_the_ledger_is_removed_in_mid_run(locked_world):
    world = locked_world
    process = hold(world, "sys.stdin.readline(); print(limit.set(260))")
    for path in world.ledger.glob("GPU-*"):
        path.unlink()
    process.stdin.write("\n")
    process.stdin.flush()
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert "the daemon's ledger cannot be written, and it changes nothing" in errors
    until(lambda: is_restored(world))
    assert {line["outcome"] for line in world.audited("ended")} == {"restored"}
    again = hold(world)
    again.kill()
    until(lambda: is_restored(world) and world.entries() == [])


def test_a_client_whose_daemon_changes_version_restores_everything_and_is_informed(locked_world):
    """As where the package is upgraded while programs run."""
    world = locked_world
    program = """
        sys.stdin.readline()
        from zeus_core.device.remote import client as _client
        _client.VERSION = 2
        limit.set(260)
    """
    process = hold(world, textwrap.dedent(program).strip().replace("\n", "\n    "))
    world.daemon.terminate()
    world.daemon.communicate(timeout=WAIT_SECONDS)
    world.start_daemon()
    process.stdin.write("\n")
    process.stdin.flush()
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert "the daemon speaks version 1 of its protocol, and the client version 2" in errors
    assert is_restored(world)
    assert world.entries() == []


def test_the_original_returns_although_an_administrator_has_reset_clocks_in_mid_run(locked_world):
    """`nvidia-smi -rgc`: the driver does not tell who has locked clocks."""
    process = hold(locked_world)
    locked_world.driver[0].locked_clock_mhz = None
    process.kill()
    until(lambda: is_restored(locked_world))


def test_what_could_not_be_restored_is_tried_again_and_kept_as_evidence(make_world, monkeypatch):
    world = make_world(DEVICE)
    world.start_daemon()
    process = hold(world)
    world.driver[0].fail("nvmlDeviceSetPowerManagementLimit", 999)
    process.kill()
    until(lambda: world.driver[0].locked_clock_mhz is None)
    until(lambda: world.audited("ended"))

    until(lambda: any(line["outcome"] == "failed" for line in world.audited("ended")))
    ledger = Ledger(str(world.ledger))
    until(lambda: [entry.failure is not None for entry in ledger.entries()] == [True])
    refused = world.connect().ask("set", device=world.uuids[0], value=300, **LIMIT)
    assert "could not be restored" in refused["message"], "its residue is nobody's original"
    world.driver.clear_faults()
    client = world.connect()
    assert "result" in client.ask("set", device=world.uuids[0], value=300, **LIMIT)
    assert world.audited("ended")[-1]["outcome"] == "restored"
    client.close()
    until(lambda: world.driver[0].power_limit_watts == ORIGINAL_WATTS)


def test_a_hanging_driver_delays_no_other_device_and_restoring_only_for_now(world):
    process = hold(world)
    world.driver[0].hang("nvmlDeviceSetPowerManagementLimit")
    try:
        process.kill()
        other = world.connect()
        assert "result" in other.ask("set", device=world.uuids[1], value=300, **LIMIT)
        assert world.driver[0].power_limit_watts == 250.0
    finally:
        world.driver[0].release()
    until(lambda: world.driver[0].power_limit_watts == ORIGINAL_WATTS)


def test_a_connections_other_device_is_restored_while_one_driver_hangs(world):
    client = world.connect()
    client.ask("set", device=world.uuids[1], value=250, **LIMIT)
    world.driver[0].hang("nvmlDeviceSetPowerManagementLimit")
    try:
        client.send(
            json.dumps({"id": 7, "op": "set", "device": world.uuids[0], "value": 300, **LIMIT}).encode() + b"\n"
        )
        until(lambda: world.audited("set")[-1]["device"] == world.uuids[0])
        client.close()
        until(lambda: world.driver[1].power_limit_watts == ORIGINAL_WATTS)
        other = world.connect()
        assert "result" in other.ask("set", device=world.uuids[1], value=300, **LIMIT)
        assert [lease["device"] for lease in other.ask("list")["result"]["leases"]] == world.uuids
    finally:
        world.driver[0].release()
    until(lambda: [line["device"] for line in world.audited("ended")] == world.uuids[::-1])
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS


def test_the_daemon_ends_with_a_device_thread_and_the_next_restores():
    program = """
        import asyncio, threading
        from zeus_core.daemon._worker import Worker
        Worker("a device", asyncio.new_event_loop()).put(lambda: 1 / 0)
        threading.Event().wait()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr


def test_the_daemon_ends_with_its_loop_and_the_next_one_restores():
    program = """
        import asyncio
        from zeus_core.daemon._worker import end_after_defect
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(end_after_defect)
        loop.call_soon(lambda: 1 / 0)
        loop.run_forever()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr


def test_the_privileged_process_holds_only_the_standard_library_and_the_drivers_binding(world):
    """Nothing that computes, and nothing that others could install beside it."""
    maps = Path(f"/proc/{world.daemon.pid}/maps").read_text(encoding="utf-8")
    assert "numpy" not in maps
    assert "torch" not in maps
    program = """
        import sys
        before = set(sys.modules)
        import zeus_core.cli, zeus_core.daemon._daemon, zeus_core.device.nvml.nvml_gpu, pynvml
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(new - sys.stdlib_module_names))
    """
    assert world.run(program)[0] == "['pynvml', 'zeus_core']"


RUNS = 5
CHILD_EXITS = "os.fork() or os._exit(0); os.wait(); print('waited', flush=True); sys.stdin.readline(); "


def seconds_of(world, end, child=""):
    """Return the seconds from the word that ends a client until its limit and its clock are restored."""
    process = hold(world, f"{child or 'sys.stdin.readline(); '}{end}")
    if child:
        assert process.stdout.readline() == "waited\n"
        assert (world.driver[0].power_limit_watts, world.driver[0].locked_clock_mhz) == (250.0, 1410)
    begin = time.monotonic()
    process.stdin.write("\n")
    process.stdin.flush()
    until(lambda: is_restored(world), f"the restoring after {end}")
    seconds = time.monotonic() - begin
    until(lambda: world.entries() == [])
    process.kill()
    return seconds


def seconds_of_a_restart(world, *, client_lives):
    """Return the seconds from the start of the daemon that follows one that was killed until all is restored."""
    process = hold(world)
    world.daemon.kill()
    world.daemon.wait()
    if not client_lives:
        process.kill()
    assert not is_restored(world), "nobody is left who could restore it"
    begin = time.monotonic()
    world.start_daemon()
    assert is_restored(world), "before it serves"
    seconds = max(call.seconds for call in world.driver.calls() if "Set" in call.function) - begin
    process.kill()
    return seconds


@pytest.mark.long
def test_how_long_the_original_state_takes_to_return(locked_world, capsys):
    """Prints the table of limit and clock: from the end of the client, or from the start of the next daemon."""
    world, ends = locked_world, {name: (end, "") for name, end in ENDS.items()}
    ends["a forked child exits, nothing happens; then SIGKILL"] = (ENDS["SIGKILL"], CHILD_EXITS)
    rows = {name: [seconds_of(world, *end) for _ in range(RUNS)] for name, end in ends.items()}
    for name, lives in (("daemon killed: from the next one's start", True), ("both killed: likewise", False)):
        rows[name] = [seconds_of_a_restart(world, client_lives=lives) for _ in range(RUNS)]
    with capsys.disabled():
        print("", "| end | median ms | longest ms |", "|---|---|---|", sep="\n")
        for name, seconds in rows.items():
            print(f"| {name} | {statistics.median(seconds) * 1e3:.1f} | {max(seconds) * 1e3:.1f} |")
