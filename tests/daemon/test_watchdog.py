"""A daemon that is stopped or stuck: systemd, or a stand-in for it, kills it, and the next one restores everything."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time

import pytest

from tests.daemon.conftest import DEVICE, MEMBERS_ALLOWED, ORIGINAL_WATTS, WAIT_SECONDS, needs_root, until
from tests.daemon.test_pages import UNIT
from tests.daemon.test_requests import make_spec
from tests.daemon.test_start_and_end import CLOCK, LIMIT, entry_of
from tests.support.systemd_stand_in import StandInForSystemd
from zeus_core.daemon import _server
from zeus_core.daemon._systemd import DriverCalls, Watchdog, WatchedGpu, WatchedLedger, _watchdog_seconds
from zeus_core.daemon._worker import Worker
from zeus_core.settings.ledger import Ledger

LOW_WATTS = 100.0


@pytest.fixture
def make_service(make_world):
    """Starts the daemon of a new world as its unit says, under the stand-in."""
    services = []

    def make(*specs, audit=None, **options):
        world = make_world(*specs or [make_spec(lowest_limit_watts=LOW_WATTS), DEVICE])
        world.write_policy(f"{MEMBERS_ALLOWED}original_sm_clock_mhz = 1710\n")

        def words(unit_words):
            _, isolated, *words = unit_words
            assert isolated == "-I"  # the tests do without: they find this package by a variable
            arguments = ["--policy", world.policy, "--audit", audit or world.audit]
            return [sys.executable, *words, *map(str, arguments)]

        environment = {**world.environment, "ZEUS_LEDGER_DIR": str(world.ledger)}
        world.service = StandInForSystemd(UNIT.read_text(encoding="utf-8"), words, environment, world.folder, **options)
        services.append(world.service)
        world.service.start()
        return world

    yield make
    for service in services:
        with contextlib.suppress(ProcessLookupError):
            service.main.send_signal(signal.SIGCONT)
        service.stop()


def wait_until_ready(world, times=1):
    until(lambda: len(world.service.times("ready")) >= times, f"the start number {times}")


def be_patient(world):
    """Let systemd wait for a minute: the daemon still answers each half second, unless it finds a thread stuck."""
    world.service.settings["WatchdogSec"] = "60"


def is_original(world, clock_mhz=None):
    limits = {device.power_limit_watts for device in world.driver}
    return limits == {ORIGINAL_WATTS} and world.driver[0].locked_clock_mhz == clock_mhz


@needs_root
def test_a_daemon_that_is_stopped_is_killed_and_the_next_one_restores(make_service):
    world = make_service()
    wait_until_ready(world)
    client, uuid = world.connect(), world.uuids[0]
    client.ask("set", device=uuid, value=LOW_WATTS, **LIMIT)
    client.ask("set", device=uuid, value=1410, **CLOCK)
    stopped = world.service.main
    begin = time.monotonic()
    stopped.send_signal(signal.SIGSTOP)
    until(lambda: is_original(world, clock_mhz=1710), "the restoring")
    killed = world.service.times("killed")[0] - begin
    print(f"killed {killed:.2f} s after it was stopped, restored after {time.monotonic() - begin:.2f} s")
    assert stopped.wait(WAIT_SECONDS) == -signal.SIGKILL
    wait_until_ready(world, 2)
    assert "result" in world.connect().ask("set", device=uuid, value=LOW_WATTS, **LIMIT)


@needs_root
def test_a_thread_stuck_outside_the_driver_ends_the_daemon(make_service):
    """Its audit log is a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    world = make_service(audit="-", stdout=writer)
    wait_until_ready(world)
    client = world.connect()
    client.ask("set", device=world.uuids[0], value=LOW_WATTS, **LIMIT)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 512)
    os.set_blocking(writer, True)  # for the daemon, too
    os.close(writer)
    client.send(b'{"id":9,"op":"set","device":"%s","knob":"power_limit","value":200}\n' % world.uuids[1].encode())
    until(lambda: world.service.times("killed"), "the end of the daemon")
    threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reader, 65536), b"")], daemon=True).start()
    until(lambda: is_original(world), "the restoring")
    wait_until_ready(world, 2)
    assert f"zeus-core {world.uuids[1][:12]}: stuck" in world.service.journal.read_text()


@needs_root
def test_a_thread_whose_driver_hangs_does_not_end_the_daemon(make_service):
    world = make_service(make_spec(lowest_limit_watts=LOW_WATTS), DEVICE)
    wait_until_ready(world)
    be_patient(world)
    first, second = world.connect(), world.connect()
    world.driver[0].hang("nvmlDeviceSetPowerManagementLimit")
    try:
        first.send(b'{"id":9,"op":"set","device":"%s","knob":"power_limit","value":200}\n' % world.uuids[0].encode())
        until(lambda: world.audited("set"))
        hung_at = time.monotonic()
        until(lambda: len([at for at in world.service.times("answered") if at > hung_at + 2.0]) > 4, "more answers")
        assert "result" in second.ask("set", device=world.uuids[1], value=300, **LIMIT)
    finally:
        world.driver[0].release()
    assert (world.service.times("killed"), world.service.journal.read_text().count("stuck")) == ([], 0)


@needs_root
def test_a_lock_that_another_process_holds_does_not_end_the_daemon(make_service):
    """Its driver may hang; the daemon waits for two seconds, and for each of two locks."""
    world = make_service()
    wait_until_ready(world)
    be_patient(world)
    Ledger(str(world.ledger)).note(entry_of(world))
    with Ledger(str(world.ledger)).locked(world.uuids[0]):
        refused = world.connect().ask("set", device=world.uuids[0], value=300, **LIMIT)
    assert "is being restored by another process" in refused["message"]
    assert (world.service.times("killed"), world.service.journal.read_text().count("stuck")) == ([], 0)
    assert "result" in world.connect().ask("set", device=world.uuids[0], value=300, **LIMIT)


@needs_root
def test_a_daemon_that_is_stopped_before_it_is_ready_is_killed_too(make_service):
    """After a shorter time than in the unit, which leaves the driver time to initialize boards."""
    world = make_service()
    wait_until_ready(world)
    world.connect().ask("set", device=world.uuids[0], value=LOW_WATTS, **LIMIT)
    world.driver[0].hang("nvmlDeviceSetPowerManagementLimit")
    world.service.settings["TimeoutStartSec"] = "3"  # of this start alone: a busy machine may take longer for the next
    world.service.main.kill()
    until(lambda: len(world.service.times("started")) >= 2)
    stopped = world.service.main
    stopped.send_signal(signal.SIGSTOP)
    until(lambda: world.service.times("killed"), "the end of the daemon")
    world.service.settings["TimeoutStartSec"] = "60"
    world.driver[0].release()
    until(lambda: is_original(world), "the restoring")
    assert stopped.wait(WAIT_SECONDS) == -signal.SIGKILL
    wait_until_ready(world, 2)


@needs_root
def test_a_daemon_that_is_killed_again_and_again_is_always_started_anew(make_service):
    world = make_service()
    for number in range(1, 8):
        wait_until_ready(world, number)
        world.service.main.kill()
    wait_until_ready(world, 8)
    assert world.service.times("start limit hit") == []


@needs_root
def test_a_daemon_asked_to_end_is_not_stuck_while_the_driver_hangs(make_service):
    world = make_service()
    wait_until_ready(world)
    client = world.connect()
    client.ask("set", device=world.uuids[0], value=LOW_WATTS, **LIMIT)
    world.driver[0].hang("nvmlDeviceSetPowerManagementLimit")
    world.service.main.terminate()
    said = len(world.service.times("answered"))
    until(lambda: len(world.service.times("answered")) > said + 4, "more answers")
    world.driver[0].release()
    until(lambda: is_original(world))


# The watchdog itself


class Threads:
    """Real threads, and what keeps them."""

    def __init__(self):
        self.calls, self.event = DriverCalls(), threading.Event()
        self.loop = asyncio.new_event_loop()
        self.workers = [Worker(f"worker {number}", self.loop) for number in range(2)]
        self.watchdog = Watchdog(self.workers, self.calls)


@pytest.fixture
def threads():
    made = Threads()
    yield made
    made.event.set()
    for worker in made.workers:
        worker.end(lambda: None)
    until(lambda: not any(worker.loop.is_running() for worker in made.workers))
    for loop in (made.loop, *(worker.loop for worker in made.workers)):
        loop.close()


def test_threads_that_wait_for_work_move_whenever_they_are_asked(threads):
    for _ in range(20):
        until(lambda: threads.watchdog.stuck() == [])


def test_a_thread_that_waits_for_something_else_is_stuck_and_moves_again(threads):
    begun = threading.Event()
    threads.workers[0].put(lambda: (begun.set(), threads.event.wait()))
    begun.wait()
    until(lambda: threads.watchdog.stuck() == ["worker 0"])
    threads.event.set()
    until(lambda: threads.watchdog.stuck() == [])


def test_a_thread_in_the_driver_or_awaiting_a_lock_is_not_stuck(threads, tmp_path):
    class HangingGpu:
        name = "a GPU"

        def set_power_limit(self, limit_watts):
            begun.set()
            threads.event.wait()
            return limit_watts

    begun = threading.Event()
    gpu = WatchedGpu(HangingGpu(), threads.calls)
    assert gpu.name == "a GPU"
    ledger = WatchedLedger(str(tmp_path / "ledger"), threads.calls)
    locked = threading.Event()

    def wait_for_lock():
        with contextlib.suppress(Exception), ledger.locked("GPU-1"):
            locked.set()

    threads.workers[0].put(lambda: gpu.set_power_limit(300.0))
    with Ledger(str(tmp_path / "ledger")).locked("GPU-1"):
        threads.workers[1].put(wait_for_lock)
        begun.wait()
        until(lambda: threads.workers[1].thread in threads.calls)
        assert threads.watchdog.stuck() == []
        assert threads.watchdog.stuck() == []
    threads.event.set()
    until(lambda: all(worker.thread not in threads.calls for worker in threads.workers))
    until(lambda: threads.watchdog.stuck() == [])


def test_a_dead_thread_is_stuck_and_one_asked_to_end_is_not(threads):
    threads.workers.append(Worker("worker 2", threads.loop))
    watchdog = Watchdog(threads.workers, threads.calls)
    dead = threads.workers.pop()
    dead.put(dead.loop.stop)
    until(lambda: watchdog.stuck() == ["worker 2"])
    threads.workers[1].end(lambda: None)
    until(lambda: threads.workers[1].is_ended)
    until(lambda: watchdog.stuck() == ["worker 2"])
    dead.loop.close()


def test_failed_restoring_is_retried_and_no_retry_waits_behind_another(monkeypatch, tmp_path):
    monkeypatch.setattr(_server, "_RETRY_SECONDS", 0.001)
    hanging, tries = threading.Event(), {"GPU-a": 0, "GPU-b": 0}

    class Desk:
        def __init__(self, uuid):
            self.uuid = uuid

        def retry(self):
            tries[self.uuid] += 1
            if self.uuid == "GPU-b":
                hanging.wait()

    async def serve():
        server = _server.Server(None, None, {uuid: Desk(uuid) for uuid in tries}, tmp_path)
        while tries["GPU-a"] < 20:
            await asyncio.sleep(0.001)
        assert tries["GPU-b"] == 1
        hanging.set()
        moved = threading.Event()
        server.workers["GPU-b"].put(moved.set)
        assert moved.wait(WAIT_SECONDS)
        assert tries["GPU-b"] == 1

    try:
        asyncio.run(serve())
    finally:
        hanging.set()


def test_failed_restoring_is_retried_also_while_requests_always_wait(monkeypatch, tmp_path):
    monkeypatch.setattr(_server, "_RETRY_SECONDS", 0.001)
    tries = []

    class Desk:
        def retry(self):
            tries.append(1)

    async def serve():
        server = _server.Server(None, None, {"GPU-a": Desk()}, tmp_path)
        worker = server.workers["GPU-a"]

        def request():
            time.sleep(0.0005)  # a call of a driver
            if len(tries) < 20:
                worker.put(request)

        for _ in range(3):
            worker.put(request)
        while len(tries) < 20:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(serve(), WAIT_SECONDS))


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "2000000"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),  # of the process that has started this one
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_answered_only_where_there_is_one(monkeypatch, variables, seconds):
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _watchdog_seconds() == seconds
