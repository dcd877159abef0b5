"""What the daemon does for its clients, and what it refuses them."""

import dataclasses
import os
import stat

import pytest

from tests.daemon.conftest import (
    DEVICE,
    GROUP,
    MEMBER,
    MEMBERS_ALLOWED,
    OPERATORS,
    ORIGINAL_WATTS,
    STRANGER,
    Raw,
    needs_root,
    until,
)

pytestmark = needs_root

LIMIT, CLOCK = {"knob": "power_limit"}, {"knob": "sm_clock"}
SET_FUNCTIONS = ("nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks")


@pytest.fixture
def uuid(common_world):
    return common_world.uuids[0]


def changes(world):
    return [call for function in SET_FUNCTIONS for call in world.driver.calls(function)]


def test_a_change_is_made_and_restored_when_the_connection_ends(common_world, raw, uuid):
    client = raw()
    assert client.ask("set", device=uuid, value=250, **LIMIT)["result"] == {"enforced": 250.0}
    assert client.ask("set", device=uuid, value=1410, **CLOCK)["result"] == {}
    assert common_world.driver[0].power_limit_watts == 250
    assert common_world.driver[0].locked_clock_mhz == 1410
    assert common_world.entries() == [f"{uuid}.power_limit.json", f"{uuid}.sm_clock.json"]
    client.close()
    until(lambda: common_world.driver[0].power_limit_watts == ORIGINAL_WATTS)
    until(lambda: common_world.driver[0].locked_clock_mhz is None)
    until(lambda: common_world.entries() == [])


def test_a_client_learns_at_what_limit_a_board_is_left_that_does_not_take_its_original(make_world):
    world = make_world(dataclasses.replace(DEVICE, power_limit_watts=327))
    world.start_daemon()
    device, uuid, client = world.driver[0], world.uuids[0], Raw(world.socket)
    client.ask("set", device=uuid, value=250, **LIMIT)
    device.take_limits(step_watts=10)
    assert client.ask("release", device=uuid, **LIMIT)["result"] == {"outcome": "restored", "instead": 320.0}
    client.close()
    assert world.audited("ended")[-1]["new"] == 320.0


def test_a_lease_is_paused_and_released(common_world, raw, uuid):
    client, device = raw(), common_world.driver[0]
    client.ask("set", device=uuid, value=250, **LIMIT)
    assert client.ask("restore", device=uuid, **LIMIT)["result"] == {"outcome": "restored"}
    assert (device.power_limit_watts, len(common_world.entries())) == (ORIGINAL_WATTS, 1)
    assert "result" in client.ask("set", device=uuid, value=300, **LIMIT)
    assert client.ask("release", device=uuid, **LIMIT)["result"] == {"outcome": "restored"}
    assert (device.power_limit_watts, common_world.entries()) == (ORIGINAL_WATTS, [])
    assert client.ask("release", device=uuid, **LIMIT)["result"] == {"outcome": "original"}
    assert "result" in raw().ask("set", device=uuid, value=300, **LIMIT), "another connection may have it now"


def test_a_device_has_one_writer_and_a_refused_one_learns_its_name(common_world, raw, uuid):
    first = raw()
    first.ask("set", device=uuid, value=250, **LIMIT)
    refusal = raw().ask("set", device=uuid, value=300, **LIMIT)
    assert refusal["error"] == "held"
    assert f"process {os.getpid()} (test) of user 0" in refusal["message"]
    program = """
        from zeus_core.device.remote.client import RemoteControl
        for knob, value in (("power_limit", 300), ("sm_clock", 1410)):
            try:
                RemoteControl({uuid!r}, knob).set(value)
            except Exception as error:
                print(type(error).__name__, error)
    """
    said, _ = common_world.run(program.replace("{uuid!r}", repr(uuid)))
    assert said.count(f"DeviceHeldError NVIDIA H200 ({uuid}) is controlled by process {os.getpid()} (test)") == 2
    assert common_world.driver[0].power_limit_watts == 250


def test_one_connection_may_ask_for_several_devices_in_turn(common_world, raw):
    client = raw()
    for number, (watts, uuid) in enumerate(zip((250, 260, 270, 280, 290), common_world.uuids * 3, strict=False)):
        assert client.ask("set", device=uuid, value=watts, **LIMIT)["result"] == {"enforced": watts}
        assert len(client.ask("list")["result"]["leases"]) == min(number + 1, 2)
        assert client.ask("energy", zone="intel-rapl:7")["error"] == "no_device"
    assert [device.power_limit_watts for device in common_world.driver] == [290, 280]


def test_simultaneous_requests_for_several_devices_are_answered_in_order(common_world, raw):
    client, count = raw(), 60
    request = b'{"id":%d,"op":"allowed","device":"%s","knob":"power_limit"}\n'
    uuids = [uuid.encode() for uuid in common_world.uuids]
    client.send(b"".join(request % (number, uuids[number % 2]) for number in range(count)))
    assert [client.read()["id"] for _ in range(count)] == list(range(count))


def test_many_write_on_one_node(common_world, raw):
    first, second = raw(), raw()
    assert "result" in first.ask("set", device=common_world.uuids[0], value=250, **LIMIT)
    assert "result" in second.ask("set", device=common_world.uuids[1], value=300, **LIMIT)
    assert [device.power_limit_watts for device in common_world.driver] == [250, 300]
    leases = first.ask("list")["result"]["leases"]
    assert [(lease["device"], lease["value"], lease["original"]) for lease in leases] == [
        (common_world.uuids[0], 250, ORIGINAL_WATTS),
        (common_world.uuids[1], 300, ORIGINAL_WATTS),
    ]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"value": 100, **LIMIT}, "usage"),  # below what the board accepts
        ({"value": 800, **LIMIT}, "usage"),  # above
        ({"value": 451, **LIMIT}, "denied"),  # above the original
        ({"value": 1411, **CLOCK}, "usage"),
        ({"value": 1410.5, **CLOCK}, "usage"),
        ({"value": -1, **CLOCK}, "usage"),
    ],
)
def test_a_refused_value_changes_nothing_and_the_client_may_continue(common_world, raw, uuid, fields, error):
    common_world.driver.clear_calls()
    client = raw()
    assert client.ask("set", device=uuid, **fields)["error"] == error
    assert changes(common_world) == []
    assert common_world.entries() == []
    assert "result" in client.ask("set", device=uuid, value=250, **LIMIT)


def test_a_device_that_is_unknown_is_refused_with_those_that_are_known(common_world, raw):
    reply = raw().ask("set", device="GPU-0", value=250, **LIMIT)
    assert reply["error"] == "no_device"
    assert ", ".join(common_world.uuids) in reply["message"]


def test_an_administrators_limit_is_respected_in_mid_run(common_world, raw, uuid):
    client, device = raw(), common_world.driver[0]
    client.ask("set", device=uuid, value=250, **LIMIT)
    device.power_limit_watts = 220.0
    reply = client.ask("set", device=uuid, value=300, **LIMIT)
    assert reply["error"] == "held"
    assert "somebody else has set 220 W" in reply["message"]
    assert client.ask("release", device=uuid, **LIMIT)["result"] == {"outcome": "replaced"}
    assert device.power_limit_watts == 220.0
    device.power_limit_watts = ORIGINAL_WATTS


def test_what_may_be_set_is_told(common_world, raw, uuid):
    client = raw()
    allowed = {"lowest": 200.0, "highest": ORIGINAL_WATTS, "original": ORIGINAL_WATTS}
    assert client.ask("allowed", device=uuid, **LIMIT)["result"] == allowed
    client.ask("set", device=uuid, value=250, **LIMIT)
    assert client.ask("allowed", device=uuid, **LIMIT)["result"] == allowed
    assert client.ask("allowed", device=uuid, **CLOCK)["result"] == {"lowest": 345, "highest": 1980, "original": None}


def test_the_socket_is_that_of_the_group_alone(common_world):
    state = common_world.socket.stat()
    assert stat.S_IMODE(state.st_mode) == 0o660
    assert (state.st_uid, state.st_gid) == (0, GROUP)


SET = """
    from zeus_core.device.remote.client import RemoteControl
    for knob, value in (("power_limit", {watts}), ("sm_clock", 1410)):
        try:
            print(RemoteControl({uuid!r}, knob).set(value))
        except Exception as error:
            print(type(error).__name__, error)
"""


def test_another_user_may_set_limits_and_clocks_without_any_right(common_world, raw, uuid):
    said, errors = common_world.run(SET.format(uuid=uuid, watts=250))
    assert said == "250.0\nNone"
    assert errors == ""
    until(lambda: common_world.driver[0].power_limit_watts == ORIGINAL_WATTS)


def test_a_user_who_is_in_no_group_cannot_even_connect(common_world, raw, uuid):
    common_world.driver.clear_calls()
    said, _ = common_world.run(SET.format(uuid=uuid, watts=250), uid=STRANGER, gids=())
    assert said.count("PermissionDeniedError this process may not use the zeus-core daemon") == 2
    assert "sudo usermod -aG" in said
    assert changes(common_world) == []


def rules(*tables):
    return f"group = {GROUP}\n" + "\n".join(f"[[allow]]\n{table}" for table in tables)


def test_a_member_without_a_rule_is_refused_and_gets_nothing_else(make_world):
    world = make_world()
    world.write_policy(rules(f"users = [{STRANGER}]"))
    world.start_daemon()
    program = """
        import json, os, socket
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ["ZEUS_DAEMON_SOCKET"])
        received = connection.makefile("rb").read()  # the daemon ends the connection by itself
        print(received.decode())
    """
    said, _ = world.run(program)
    assert f"user {MEMBER} may not use the zeus-core daemon" in said
    assert said.count('"id"') == 1
    assert "devices" not in said
    assert world.run(SET.format(uuid=world.uuids[0], watts=250))[0].count("PermissionDeniedError") == 2
    said, _ = world.run(SET.format(uuid=world.uuids[0], watts=250), uid=STRANGER)
    assert said == "250.0\nNone"


def test_a_rule_bounds_devices_knobs_and_values(make_world):
    world = make_world(*2 * [make_spec()])
    first, second = world.uuids
    world.write_policy(
        rules(
            f'users = [{MEMBER}]\ndevices = ["{first}"]\nknobs = ["power_limit"]\npower_limit_watts = [220, 300]',
            f'users = [{STRANGER}]\nknobs = ["power_limit"]\nmay_exceed_original = true\ncpu_energy = false',
        )
    )
    world.start_daemon()

    def said_by(uid, uuid, watts):
        return world.run(SET.format(uuid=uuid, watts=watts), uid=uid, gids=(GROUP,))[0].splitlines()

    assert said_by(MEMBER, first, 300)[0] == "300.0"
    assert "310 W is not allowed to user" in said_by(MEMBER, first, 310)[0]
    assert "219 W is not allowed" in said_by(MEMBER, first, 219)[0]
    assert "may not change the SM clock" in said_by(MEMBER, first, 300)[1]
    assert "may not change the power limit" in said_by(MEMBER, second, 300)[0]
    assert said_by(STRANGER, second, 600)[0] == "600.0"


def make_spec(**changes):
    return dataclasses.replace(DEVICE, **changes)


def test_clocks_that_an_administrator_keeps_locked_are_locked_again(make_world):
    world = make_world()
    world.write_policy(f"{MEMBERS_ALLOWED}original_sm_clock_mhz = 1710\n")
    world.start_daemon()
    said, _ = world.run(SET.format(uuid=world.uuids[0], watts=250))
    assert said == "250.0\nNone"
    until(lambda: world.driver[0].locked_clock_mhz == 1710)
    assert world.driver.calls("nvmlDeviceResetGpuLockedClocks") == []


def test_every_change_is_in_the_audit_log_before_it_is_made(make_world):
    world = make_world()
    world.start_daemon()
    world.run(SET.format(uuid=world.uuids[0], watts=250))
    until(lambda: len(world.audited("ended")) == 2)
    first, second = world.audited("set")
    assert {name: first[name] for name in ("knob", "old", "new", "uid", "program", "device")} == {
        "knob": "power_limit",
        "old": ORIGINAL_WATTS,
        "new": 250.0,
        "uid": MEMBER,
        "program": "-c",
        "device": world.uuids[0],
    }
    assert (second["knob"], second["new"]) == ("sm_clock", 1410.0)
    assert {(line["knob"], line["outcome"]) for line in world.audited("ended")} == {
        ("power_limit", "restored"),
        ("sm_clock", "restored"),
    }
    assert stat.S_IMODE(world.audit.stat().st_mode) == 0o640


def test_every_refused_request_is_audited_with_who_what_and_why(make_world):
    world = make_world(DEVICE, DEVICE)
    limits = "power_limit_watts = [200, 300]\ncpu_energy = false"
    world.write_policy(
        rules(
            f"users = [{MEMBER}]\ndevices = ['{world.uuids[0]}']\nknobs = ['power_limit']\n{limits}",
            f"groups = [{OPERATORS}]",
        )
    )
    world.start_daemon()
    holder = world.connect()
    holder.ask("set", device=world.uuids[1], value=250, **LIMIT)
    first, second = world.uuids
    asked = [
        ("set", {"device": first, "knob": "power_limit", "value": 310.0}, "310 W is not allowed to user"),
        (
            "set",
            {"device": first, "knob": "power_limit", "value": 100.0},
            "a power limit of 100 W is outside the 200 to 700 W",
        ),  # below what the board accepts
        ("set", {"device": first, "knob": "sm_clock", "value": 1410.0}, "may not change the SM clock"),
        ("set", {"device": second, "knob": "power_limit", "value": 250.0}, "may not change the power limit"),
        ("allowed", {"device": second, "knob": "power_limit"}, "may not change the power limit"),
        ("set", {"device": "GPU-0", "knob": "power_limit", "value": 250.0}, "the daemon has no device GPU-0"),
        ("energy", {"zone": "intel-rapl:0"}, "may not read the energy of CPUs"),
    ]
    program = f"""
        from zeus_core.device.remote.client import DaemonConnection
        from zeus_core.errors import ZeusError
        connection = DaemonConnection()
        for operation, fields in {[(operation, fields) for operation, fields, _ in asked]!r}:
            try:
                print(connection.ask(operation, fields))
            except ZeusError as error:
                print("refused")
    """
    assert world.run(program)[0].split() == ["refused"] * len(asked)
    other = world.connect()
    other.ask("set", device=second, value=300, **LIMIT)
    lines = world.audited("refused")
    for line, (operation, fields, why) in zip(lines, asked, strict=False):
        assert {name: line[name] for name in fields} == fields
        assert (line["request"], line["uid"], line["program"]) == (operation, MEMBER, "-c")
        assert why in line["because"]
        assert line["pid"] > 0
    (held,) = lines[len(asked) :]
    assert held["because"].startswith("NVIDIA H200 (GPU-")
    assert (held["uid"], held["value"], held["pid"]) == (0, 300.0, os.getpid())
    assert [line["device"] for line in world.audited("set")] == [second], "the refused ones were not made"
    assert world.audited("failed") == []


def test_refused_connections_and_invalid_requests_are_in_the_audit_log(make_world):
    world = make_world()
    world.write_policy(rules(f"users = [{STRANGER}]\ngroups = [{OPERATORS}]"))
    world.start_daemon()
    client = world.connect()
    client.send(b'{"id":1,"op":"set"}\n')
    assert client.read()["error"] == "protocol"
    (line,) = world.audited("refused")
    assert (line["uid"], line["program"], line["connection"]) == (0, "test", 0)
    assert "has the fields id, op, device" in line["because"]
    world.run(SET.format(uuid=world.uuids[0], watts=250))
    line = world.audited("refused")[1]
    assert (line["uid"], line["because"]) == (MEMBER, f"user {MEMBER} may not use the zeus-core daemon of this machine")


def test_a_change_denied_to_the_daemon_is_a_failure_not_a_refusal(make_world):
    world = make_world(make_spec(is_control_denied=True))
    world.start_daemon()
    assert world.connect().ask("set", device=world.uuids[0], value=250, **LIMIT)["error"] == "denied"
    assert len(world.audited("failed")) == 1
    assert world.audited("refused") == []


def test_a_log_that_was_rotated_is_written_anew(common_world, raw, uuid):
    client = raw()
    client.ask("set", device=uuid, value=250, **LIMIT)
    common_world.audit.rename(common_world.folder / "audit.jsonl.1")

    def is_written_anew():
        client.ask("set", device=uuid, value=300, **LIMIT)
        return common_world.audit.exists()

    until(is_written_anew)
    assert [line["new"] for line in common_world.audited("set")] == [300.0]


def test_the_energy_counters_of_cpus_are_read_for_clients(make_world):
    world = make_world()
    for number, zone_name in enumerate(("package-0", "package-1")):
        zone = world.folder / "powercap" / f"intel-rapl:{number}"
        zone.mkdir(parents=True)
        for name, text in (("name", zone_name), ("energy_uj", "123456"), ("max_energy_range_uj", "262143328850")):
            (zone / name).write_text(f"{text}\n")
        (zone / "energy_uj").chmod(0o400)
    world.write_policy(rules(f"users = [{MEMBER}]", f"users = [{STRANGER}]\ncpu_energy = false"))
    program = f"""
        import pathlib, sys
        from zeus_core.device import discover_cpus
        found = discover_cpus(pathlib.Path({str(world.folder)!r}) / "powercap")
        print([cpu.name for cpu in found.cpus], found.unavailable_because, flush=True)
        for cpu in found.cpus:
            sys.stdin.readline()
            print(cpu.read_energy_counters_joules(), flush=True)
    """
    refusal = "[] this process may not read"
    assert world.run(program)[0].startswith(refusal), "without a daemon"
    world.start_daemon()
    process = world.client(program)
    assert process.stdout.readline() == "['package-0', 'package-1'] None\n"
    (world.folder / "powercap" / "intel-rapl:0" / "energy_uj").write_text("2123456\n")
    output, errors = process.communicate("\n\n", timeout=240)
    assert output.splitlines() == [
        "CpuEnergyCounters(package_joules=2.0, dram_joules=None)",
        "CpuEnergyCounters(package_joules=0.0, dram_joules=None)",
    ], errors
    said, _ = world.run(program, uid=STRANGER, gids=(GROUP,))
    assert said.startswith(refusal), "the policy does not allow it"
    assert "start the zeus-core daemon" in said


def test_a_zone_that_is_not_there_is_refused(raw):
    assert raw().ask("energy", zone="intel-rapl:7")["error"] == "no_device"
