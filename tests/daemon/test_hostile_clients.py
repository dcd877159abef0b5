"""Clients that are slow, silent, broken or malicious: they get nothing, and delay nobody."""

import asyncio
import contextlib
import json
import os
import random
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.daemon.conftest import MEMBERS_ALLOWED, ORIGINAL_WATTS, Raw, needs_root, until
from zeus_core.daemon._connection import Entrance
from zeus_core.daemon._policy import Allotment, Policy
from zeus_core.device.remote.protocol import (
    MAX_REQUEST_BYTES,
    ProtocolError,
    decode_reply,
    decode_request,
    encode_error,
    encode_request,
    encode_result,
)
from zeus_core.errors import DeviceHeldError, UsageError
from zeus_core.kinds import KINDS

LIMIT = {"knob": "power_limit"}
VALID = {"id": 1, "op": "set", "device": "GPU-1", "knob": "power_limit", "value": 250}
GREETING = {"id": 1, "op": "hello", "version": 1, "program": "a", "job": "b", "token": "c", "start_ticks": 1}


def line_of(**changes):
    return json.dumps({**VALID, **changes}).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"set"',
        b"\xff\xfe",
        "{}".encode("utf-16"),
        b"{" * 4000,
        b"[" * 4000,
        b'{"id":1,"op":"list"} {}',
        b'{"id":1,"op":"list"}}',
        b'{"id":1,"id":1,"op":"list"}',
        b'{"id":1,"op":"list","more":1}',
        b'{"id":1,"op":"set"}',
        b'{"id":true,"op":"list"}',
        b'{"id":-1,"op":"list"}',
        b'{"id":1e3,"op":"list"}',
        b'{"id":99999999999999999999,"op":"list"}',
        b'{"id":1,"op":["list"]}',
        b'{"id":1,"op":"_list"}',
        b'{"id":1,"op":"set","device":"GPU-1","knob":"power_limit","value":' + b"9" * 4000 + b"}",
        line_of(value=None),
        line_of(value=True),
        line_of(value="250"),
        line_of(value=1e300),
        line_of(value=float("nan")),
        line_of(value=float("inf")),
        line_of(knob="fan"),
        line_of(knob=["power_limit"]),
        line_of(device=""),
        line_of(device="GPU 1"),
        line_of(device="GPU-1\n"),
        line_of(device="G" * 97),
        line_of(device=7),
        json.dumps({**GREETING, "program": "\x1b[2J"}).encode(),
        json.dumps({**GREETING, "program": "x" * 201}).encode(),
        json.dumps({**GREETING, "version": "1"}).encode(),
        b'{"id":1,"op":"energy","zone":"../../etc/shadow"}',
        b'{"id":1,"op":"energy","zone":"intel-rapl:0/../.."}',
    ],
)
def test_what_is_no_request_is_refused(line):
    with pytest.raises(ProtocolError):
        decode_request(line)


def test_what_is_a_request_is_read():
    assert decode_request(line_of()).fields == {"device": "GPU-1", "knob": "power_limit", "value": 250}
    assert decode_request(json.dumps(GREETING).encode()).fields["program"] == "a"
    assert decode_request(b' \t{"id": 1, "op": "list"} \r').number == 1


@given(st.binary(max_size=200) | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(repr))
def test_any_bytes_are_a_request_or_are_refused(data):
    with contextlib.suppress(ProtocolError):
        decode_request(data.encode() if isinstance(data, str) else data)


@given(
    number=st.integers(0, 2**53),
    device=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,95}", fullmatch=True),
    knob=st.sampled_from(["power_limit", "sm_clock"]),
    value=st.floats(-1e9, 1e9, exclude_min=True, exclude_max=True) | st.integers(-(10**9) + 1, 10**9 - 1),
)
def test_a_change_reads_the_same_from_client_words_and_from_any_json(number, device, knob, value):
    fields = {"device": device, "knob": knob, "value": value}
    request = (number, "set", fields)
    line = encode_request(number, "set", fields)
    assert decode_request(line[:-1]) == request
    assert decode_request(line.replace(b":", b": ")[:-1]) == request


@pytest.mark.parametrize("value", ["1e3", "-1", "0", "0.5", "250", "250.0", "99999999.99999999", "999999999"])
def test_numbers_of_json_are_read(value):
    line = b'{"id":1,"op":"set","device":"GPU-1","knob":"power_limit","value":%s}'
    assert decode_request(line % value.encode()).fields["value"] == float(value)


@pytest.mark.parametrize(
    "value", ["01", "+1", "1.", ".5", "1_0", "0x1", "nan", "inf", "- 1", "1000000000", "\u0661", "1 2"]
)
def test_other_numbers_are_refused(value):
    line = b'{"id":1,"op":"set","device":"GPU-1","knob":"power_limit","value":%s}'
    with pytest.raises(ProtocolError):
        decode_request(line % value.encode())


def test_replies_hold_results_and_errors():
    for enforced in (250.0, 318.25, 1e-7, 250, None):
        result = {} if enforced is None else {"enforced": enforced}
        assert decode_reply(encode_result(7, result)[:-1]) == (7, result)
    assert decode_reply(encode_result(3, {"a": 1})) == (3, {"a": 1})
    for error in (DeviceHeldError("held"), UsageError("wrong"), ProtocolError("what")):
        number, answer = decode_reply(encode_error(4, error))
        assert (number, type(answer), str(answer)) == (4, type(error), str(error))
    with pytest.raises(ProtocolError):
        decode_reply(b"{}")


# The daemon itself


def expect_refusal(connection, words):
    reply = connection.read()
    assert reply["error"] == "protocol"
    assert words in reply["message"]
    assert connection.read() is None, "the connection is over"


@needs_root
def test_a_connection_that_breaks_the_protocol_ends_and_its_lease_with_it(common_world, raw):
    client = raw()
    client.ask("set", device=common_world.uuids[0], value=250, **LIMIT)
    client.send(b'{"id":1,"op":"set"\n')
    expect_refusal(client, "no JSON")
    until(lambda: common_world.driver[0].power_limit_watts == ORIGINAL_WATTS)


@needs_root
def test_a_request_that_is_too_long_is_refused(raw):
    client = raw()
    client.send(b"x" * (MAX_REQUEST_BYTES + 1))
    expect_refusal(client, f"more than {MAX_REQUEST_BYTES} bytes")


@needs_root
def test_the_greeting_comes_first_and_once_in_a_version_the_daemon_speaks(common_world, raw):
    client = raw(greets=False)
    client.send(b'{"id":1,"op":"list"}\n')
    expect_refusal(client, "greeting")
    client = raw(version=2)
    assert client.answer["error"] == "protocol"
    assert "version 1 of its protocol, and the client version 2" in client.answer["message"]
    client = raw()
    assert client.ask("hello", version=1, program="", job="", token="", start_ticks=0)["error"] == "protocol"


@needs_root
def test_a_process_that_has_another_one_s_number_is_refused(raw):
    client = raw(greets=False)
    reply = client.ask("hello", version=1, program="", job="", token="", start_ticks=1)
    assert "the process that connected has ended" in reply["message"]


@needs_root
def test_silent_slow_and_unfinished_clients_delay_nobody(common_world, raw):
    silent = [raw(greets=False) for _ in range(20)]
    slow = raw()
    slow.send(b'{"id":1,"op":"li')
    client = raw()
    for watts in (250, 300, 350):
        assert "result" in client.ask("set", device=common_world.uuids[0], value=watts, **LIMIT)
    slow.send(b'st"}\n')
    assert slow.read()["id"] == 1
    for connection in silent:
        connection.send(b'{"id":1,"op":"set","device":"' + os.urandom(8).hex().encode())
        connection.close()
    assert "result" in client.ask("list")


@needs_root
def test_simultaneous_requests_are_answered_in_order_and_delay_nobody(common_world, raw):
    many = raw()
    request = b'{"id":%d,"op":"allowed","device":"%s","knob":"power_limit"}\n'
    count = 150  # all replies fit into the socket: a client that leaves more unread is dropped
    uuid = common_world.uuids[0].encode()
    many.socket.setblocking(True)
    client = raw()
    many.send(b"".join(request % (number, uuid) for number in range(count)))
    assert "result" in client.ask("set", device=common_world.uuids[1], value=250, **LIMIT)
    assert [many.read()["id"] for _ in range(count)] == list(range(count))


@needs_root
def test_a_client_that_reads_no_replies_is_dropped(common_world, raw):
    deaf, client = raw(), raw()
    deaf.ask("set", device=common_world.uuids[0], value=250, **LIMIT)
    deaf.socket.settimeout(0)
    is_open = True
    while is_open:
        try:
            deaf.socket.send(b'{"id":1,"op":"list"}\n' * 50)
        except BlockingIOError:
            pass
        except OSError:
            is_open = False
        assert "result" in client.ask("list"), "the others are served"
    until(lambda: common_world.driver[0].power_limit_watts == ORIGINAL_WATTS)


@needs_root
def test_a_user_has_so_many_connections_and_the_others_theirs(make_world):
    world = make_world()
    world.write_policy(f"{MEMBERS_ALLOWED}[limits]\nconnections_per_user = 3\n")
    world.start_daemon()
    connections = [Raw(world.socket) for _ in range(3)]
    refused = Raw(world.socket)
    assert "has 3 connections" in refused.answer["message"]
    assert refused.read() is None
    refused.close()
    assert world.run("from zeus_core.device.remote.client import DaemonConnection as C; print(C().ask('list'))")[0]
    connections.pop().close()

    def is_free():
        again = Raw(world.socket)
        is_served = "result" in again.answer
        again.close()
        return is_served

    until(is_free)
    for connection in connections:
        connection.close()


def test_an_allotment_is_that_many_requests_a_second_with_a_burst():
    now = 0.0
    allotment = Allotment(100, lambda: now)
    served = []
    while now < 10.0:
        while allotment.wait_seconds == 0.0:
            assert allotment.take() == 0.0
            served.append(now)
        now += 0.001
    assert 1000 <= len(served) <= 1012
    assert served.count(0.0) == 11


def test_each_request_that_waits_has_a_place_of_its_own():
    allotment = Allotment(100, lambda: 0.0)
    waits = [allotment.take() for _ in range(31)]
    assert waits[:11] == [0.0] * 11
    assert waits[11:] == pytest.approx([0.01 * place for place in range(1, 21)])


@needs_root
def test_a_flood_of_refused_connections_is_refused_and_not_all_on_record(make_world):
    world = make_world()
    world.write_policy(f"{MEMBERS_ALLOWED}[limits]\nconnections_per_user = 1\nrequests_per_second = 1\n")
    world.start_daemon()
    client, count = world.connect(), 0

    def is_on_record():
        nonlocal count
        count += 1
        refused = Raw(world.socket)
        assert "has 1 connections" in refused.answer["message"]
        refused.close()
        return world.audited("refused")

    until(is_on_record)  # once the share that the greeting has taken is there again
    for _ in range(20):
        is_on_record()
    assert len(world.audited("refused")) < count
    assert "result" in client.ask("list")


def test_a_flood_of_connections_does_not_stop_the_loops_other_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path has 107 bytes at most
    path, count, refused = "daemon.sock", 30, []

    class NoServer:
        def refuse(self, peer, error):
            refused.append(peer.pid)

    async def accept(listener):
        accepting = asyncio.create_task(Entrance(listener, Policy(), NoServer()).accept())
        for turn in range(1, count + 1):
            await asyncio.sleep(0)
            assert len(refused) == turn
        accepting.cancel()

    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as flood:
        listener.bind(path)
        listener.listen(count)
        for _ in range(count):
            flood.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        asyncio.run(accept(listener))


def random_message(chooser, uuids):
    """A request that is valid, or nearly, or not at all. None of them may be allowed to change a device."""
    kind = chooser.randrange(5)
    if kind == 0:
        return os.urandom(chooser.randrange(1, 60)).replace(b"\n", b"") + b"\n"
    message = {
        "id": chooser.choice([0, 1, 2**60, -1, "1", None]),
        "op": chooser.choice(["set", "allowed", "restore", "release", "list", "energy", "hello", "x", 5]),
        "device": chooser.choice([*uuids, "GPU-0", "", "x" * 500, 3]),
        "knob": chooser.choice([*KINDS, "fan", None]),
        "value": chooser.choice([-1, 0, 1e9, 1e308, 451, 700, 10**400, "250", None, [], {}, True]),
    }
    for name in chooser.sample(sorted(message), chooser.randrange(3)):
        del message[name]
    data = json.dumps(message).encode() + b"\n"
    if kind == 1:
        place = chooser.randrange(len(data))
        data = data[:place] + bytes([chooser.randrange(256)]) + data[place + 1 :]
    if kind == 2:
        data = data[: chooser.randrange(len(data))]
    return data


def open_files(world):
    return len(list(Path(f"/proc/{world.daemon.pid}/fd").iterdir()))


def fuzz(world, seed, count):
    chooser, files = random.Random(seed), open_files(world)
    world.driver.clear_calls()
    client = Raw(world.socket)
    connection, sent = Raw(world.socket), 0
    while sent < count:
        burst = [random_message(chooser, world.uuids) for _ in range(chooser.randrange(1, 8))]
        sent += len(burst)
        try:
            connection.socket.settimeout(0)
            connection.socket.sendall(b"".join(burst))
            is_kept = chooser.random() < 0.3
        except OSError:
            is_kept = False
        if not is_kept:
            connection.close()
            connection = Raw(world.socket, greets=chooser.random() < 0.8)
        if chooser.random() < 0.05:
            assert "result" in client.ask("list"), "the others are served"
    connection.close()
    assert "result" in client.ask("list")
    client.close()
    until(lambda: open_files(world) <= files, "the end of all connections")
    assert world.daemon.poll() is None
    assert [call for call in world.driver.calls() if "Set" in call.function or "Reset" in call.function] == []
    assert [device.power_limit_watts for device in world.driver] == [ORIGINAL_WATTS] * len(world.driver)


@needs_root
def test_random_messages_change_nothing_and_the_daemon_goes_on(common_world):
    fuzz(common_world, 1, 1000)


@needs_root
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=9000))
def test_any_bytes_change_nothing_and_the_daemon_goes_on(common_world, data):
    connection = Raw(common_world.socket)
    with contextlib.suppress(OSError):
        connection.socket.sendall(data)
    connection.close()
    client = Raw(common_world.socket)
    assert client.ask("list")["result"]["leases"] == []
    client.close()


@needs_root
@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_thousand_random_messages_change_nothing(common_world, seed):
    fuzz(common_world, 100 + seed, 20_000)
