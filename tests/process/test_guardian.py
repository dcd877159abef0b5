"""The end of a process that has changed a GPU, in whatever way: the guardian restores it, or the next start does.

Every way out is tried with a real process, on a power limit and on a locked clock, through the driver in C. Where the
tests run without rights (`tests/unprivileged.py`), the daemon is the guardian: what is done to one is done to the
other.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import textwrap
import time
from functools import cached_property
from pathlib import Path

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import daemon_of, is_unprivileged
from tests.support.variants import long_but_first
from zeus_core.kinds import POWER_LIMIT
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.guardian_program import _follow
from zeus_core.settings.keeper import Keeper

IS_OTHER_USER = os.geteuid() != 0 and not is_unprivileged()  # who may change the devices of these tests all the same
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guardian needs Linux")

ORIGINAL_WATTS = 450.0  # neither the default (650 W) nor the maximum (700 W)
ORIGINAL_MHZ = 1710
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)

OWNER = """
    import ctypes, os, signal, sys, time
    from tests.support.hooks import be_patient
    be_patient()
    from zeus_core.device import discover_gpus
    from zeus_core.settings.clock_knob import SmClockKnob
    from zeus_core.settings.limit_knob import PowerLimitKnob

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it runs in the background ignore them
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    gpus = discover_gpus({})
    knob = MAKE_KNOB
    knob.apply(knob.settings[-1])

    def say(word):
        print(word, time.monotonic(), flush=True)

    BEFORE
    say("ready")
    input()
    say("end")
    END
    time.sleep(60)
"""

OF_MODULE = "power limit of a GPU, where that of its module is refused"
KNOBS = {
    "power limit": "PowerLimitKnob(gpus, 25)",
    "locked clock": f"SmClockKnob(gpus[0], {ORIGINAL_MHZ})",
    "power limit of a board that rounds": "PowerLimitKnob(gpus, 35)",
    OF_MODULE: "PowerLimitKnob(gpus, 25)",
}

ENDS = {
    "normal end": "sys.exit()",
    "exception": "raise RuntimeError",
    "Ctrl-C": "os.kill(os.getpid(), signal.SIGINT)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGHUP": "os.kill(os.getpid(), signal.SIGHUP)",
    "SIGQUIT": "os.kill(os.getpid(), signal.SIGQUIT)",
    "SIGALRM": "os.kill(os.getpid(), signal.SIGALRM)",
    "SIGPROF": "os.kill(os.getpid(), signal.SIGPROF)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "abort": "os.abort()",
    "os._exit": "os._exit(3)",
    "segfault": "ctypes.string_at(0)",
    "exec": "os.execv('/bin/sleep', ['sleep', '60'])",
    # The test sends the signal. A lock that the thread itself holds is waited for for ever, also after a signal.
    "SIGTERM in C code": """
        lock = ctypes.create_string_buffer(64)
        ctypes.CDLL(None).pthread_mutex_lock(lock)
        ctypes.CDLL(None).pthread_mutex_lock(lock)
    """,
}
FORKED = """
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)  # the test waits for the end of these, and not for the child
        time.sleep(10)
        os._exit(0)
"""


CHILD_EXITS = """
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
"""
NEXT = """
    import time
    from zeus_core.device import discover_gpus
    from zeus_core.settings.clock_knob import SmClockKnob
    from zeus_core.settings.limit_knob import PowerLimitKnob

    print(time.monotonic())
    gpus = discover_gpus({})
    MAKE_KNOB
"""


class Owner:
    """A process that has changed the GPU."""

    def __init__(self, driver, knob, end="", before=""):
        self.driver = driver
        driver[0].locked_clock_mhz = ORIGINAL_MHZ
        if "rounds" in knob:
            driver[0].take_limits(step_watts=30)
        if "module" in knob:
            driver[0].refuse_module_limit()
        lines = {"MAKE_KNOB": KNOBS[knob], "BEFORE": before, "END": end}
        program = textwrap.dedent(OWNER)
        for name, line in lines.items():
            program = program.replace(name, textwrap.dedent(line).strip())
        self.process = driver.start(program)
        self._is_limit = "power limit" in knob
        self.guardian = daemon_of(driver) or Guardian(self)

    def begin(self):
        self.expect("ready")
        assert not self.is_restored()
        return self

    def expect(self, word):
        line = self.process.stdout.readline()
        assert line.startswith(word), self.process.stderr.read()
        return float(line.split()[1])

    def is_restored(self):
        device = self.driver[0]
        if self._is_limit:
            return device.power_limit_watts == ORIGINAL_WATTS
        return device.locked_clock_mhz == ORIGINAL_MHZ

    def end(self, signal_number=None):
        """Let it end, and return the seconds until the GPU was restored."""
        self.driver.clear_calls()
        self.go_on()
        begin = self.expect("end")
        if signal_number is not None:
            time.sleep(0.3)  # it is in C code by now
            begin = time.monotonic()
            self.process.send_signal(signal_number)
        until = time.monotonic() + 240
        while not self.is_restored():
            assert time.monotonic() < until, "it was not restored"
            time.sleep(0.001)
        return self.last_change_seconds() - begin

    def last_change_seconds(self):
        return max(call.seconds for call in self.driver.calls() if call.function.startswith("nvmlDeviceSet"))

    def go_on(self):
        """Let it read on, from a line that its program waits for."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self):
        self.process.kill()
        self.process.communicate()


class Guardian:
    """The guardian of an owner; `ServingDaemon` is that of owners without rights.

    Args:
        owner: The owner.
    """

    def __init__(self, owner):
        self._owner = owner

    @cached_property
    def process_id(self):
        """Its number, once it has opened the driver: so may guardians of earlier owners, at the same time."""
        wait_until(self._found)
        (process_id,) = self._found()
        return process_id

    def _found(self):
        owner = f", {self._owner.process.pid}, "
        return [process_id for process_id in openers(self._owner.driver) if owner in program_of(process_id)]

    def kill(self):
        os.kill(self.process_id, signal.SIGKILL)
        self.wait_for_end()

    def wait_for_end(self):
        wait_until(lambda: not Path(f"/proc/{self.process_id}").exists())

    def start(self):
        """Nothing is to be done: the next change starts another."""

    def stop(self):
        os.kill(self.process_id, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.process_id, signal.SIGCONT)


@pytest.fixture
def make_driver(make_driver):
    """Makes drivers, whose ledger is that of the daemon where one serves them, as on a machine."""

    def make(*specs):
        driver = make_driver(*specs)
        if is_unprivileged():
            driver.ledger_path = daemon_of(driver).ledger_path
        return driver

    return make


@pytest.fixture
def start(make_driver):
    owners = []

    def start_owner(knob, end="", before="", driver=None):
        owners.append(Owner(driver or make_driver(DEVICE), knob, end, before))
        return owners[-1].begin()

    yield start_owner
    for owner in owners:
        owner.close()


def wait_until(condition):
    until = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def program_of(process_id):
    """The arguments of a process; none if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process_id}/cmdline").read_text()
    return ""


def openers(driver):
    """The processes that have opened the driver."""
    return {call.process_id for call in driver.calls("nvmlInit")}


def entries(driver):
    found = []
    for path in driver.ledger_path.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # it was restored just now
            found.append(json.loads(path.read_text().split("\n")[0]))
    return found


def is_tidy(driver):
    """Whether nothing is left in the ledger, but for what a daemon keeps while it runs."""
    return {path.name for path in driver.ledger_path.glob("*")} <= {"daemon.lock"}


QUICK = [
    *(("SIGKILL", knob) for knob in ("power limit", "locked clock", OF_MODULE)),
    *(("exec", "power limit"), ("segfault", "locked clock")),
]
ALL = [(end, knob) for end in ENDS for knob in KNOBS]


@pytest.mark.parametrize(
    ("end", "knob"),
    [pytest.param(*cell, marks=[] if cell in QUICK else pytest.mark.long, id=" ".join(cell)) for cell in ALL],
)
def test_the_original_is_restored_and_nothing_is_left(start, end, knob):
    owner = start(knob, ENDS[end])
    owner.end(15 if end == "SIGTERM in C code" else None)
    wait_until(lambda: is_tidy(owner.driver))


def test_messages_of_a_process_killed_before_the_guardian_is_ready_are_read():
    """A socket that is closed with something unread in it reports an error to the other side, before the messages."""
    keeper, held = Keeper(lambda uuid: None, None), {}
    entry = LedgerEntry.of_this_process("GPU-1", "a board", POWER_LIMIT, ORIGINAL_WATTS)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.send(b"!")
        ours.send(json.dumps({"hold": entry.to_json()}).encode())
        ours.close()
        _follow(theirs, None, keeper, held)
    assert held == {entry.key: entry}


@pytest.mark.parametrize("knob", long_but_first(KNOBS))
def test_a_process_that_is_killed_at_once_is_restored(make_driver, knob):
    """Right after the change, and in one process after the other: no guardian may be late."""
    for _ in range(3):
        owner = Owner(make_driver(DEVICE), knob, before="os.kill(os.getpid(), signal.SIGKILL)")
        owner.process.communicate()
        wait_until(lambda owner=owner: not entries(owner.driver))
        assert owner.is_restored()
        made = [call.function for call in owner.driver.calls() if call.code == 0]
        changes = [function for function in made if function.startswith("nvmlDeviceSet")]
        probes = 1 if IS_OTHER_USER else 0  # it sets the limit in force, to learn whether it may
        assert len(changes) == probes + 2, "the owner's and the guardian's"


def test_the_guardian_loads_python_the_package_and_the_binding():
    """It restores by the session that measures. Each process that trains has one: nothing else may take memory."""
    program = f"""if True:
        import sys
        sys.path += {sys.path!r}
        import pynvml, zeus_core.settings.guardian_program
        print(*sys.modules)
    """
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    loaded = set(ran.stdout.split())
    assert {"pynvml", "zeus_core.device.nvml.restoring_gpu", "zeus_core.settings.keeper"} <= loaded, ran.stderr
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert others <= {"__main__", "pynvml", "zeus_core"}
    wings = {"activities", "batches", "carbon", "daemon", "jobs", "mixed", "pipeline", "runs", "selfcheck"}
    parts = {name.split(".")[1] for name in loaded if name.startswith("zeus_core.")}
    assert parts.isdisjoint({*wings, "cli", "monitor", "optimizer", "search", "training"}), parts


# What measuring reads, and what a driver answers to it that does not have it, or does not say why it fails.
UNREADABLE = [
    *(("power limit", "nvmlDeviceGetPowerManagementLimitConstraints", code) for code in (3, 999)),
    ("locked clock", "nvmlDeviceGetSupportedMemoryClocks", 3),
    ("locked clock", "nvmlDeviceGetSupportedGraphicsClocks", 999),
]


@pytest.mark.parametrize(("knob", "function", "code"), UNREADABLE)
def test_a_reading_that_fails_does_not_keep_the_original_from_being_restored(start, knob, function, code):
    owner = start(knob, ENDS["SIGKILL"])
    owner.driver.fail(function, code)
    owner.end()


WITHOUT_THE_FOLDER = """
    import os, signal, sys
    import pynvml
    from zeus_core.device import discover_gpus
    from zeus_core.settings.limit_knob import PowerLimitKnob
    CHANGE
    knob = PowerLimitKnob(discover_gpus({}), 25)
    knob.apply(knob.settings[-1])
    print("ready", flush=True)
    input()
    os.kill(os.getpid(), signal.SIGKILL)
"""
PATH_CHANGES = {
    "gone": "sys.path[:] = [p for p in sys.path if not os.path.exists(os.path.join(p, 'pynvml.py'))]",
    "one of very many": "sys.path += [f'{LONG}/{i}' for i in range(900)]",
    "one of very many that exist": """
        for i in range(900):
            os.makedirs(f'{LONG}/{i}', exist_ok=True)
            sys.path.append(f'{LONG}/{i}')
    """,
}


@pytest.mark.parametrize("change", PATH_CHANGES)
def test_the_guardian_finds_the_binding_whatever_the_path_is(make_driver, tmp_path, change):
    """It once ended in silence."""
    driver, lines = make_driver(DEVICE), textwrap.dedent(PATH_CHANGES[change]).strip()
    lines = f"LONG = {str(tmp_path / ('x' * 200))!r}\n{lines}"
    process = driver.start(textwrap.dedent(WITHOUT_THE_FOLDER).replace("CHANGE", lines))
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    assert driver[0].power_limit_watts != ORIGINAL_WATTS
    process.communicate("\n")
    wait_until(lambda: driver[0].power_limit_watts == ORIGINAL_WATTS)


@pytest.mark.skipif(IS_OTHER_USER, reason="who is not root starts it with the first change, once that is permitted")
def test_the_guardian_starts_ahead_of_the_first_change(make_driver):
    """A process without rights starts none: the daemon is there."""
    driver = make_driver(DEVICE)
    known = openers(driver)
    program = """
        from zeus_core.device import discover_gpus
        from zeus_core.settings.limit_knob import PowerLimitKnob
        knob = PowerLimitKnob(discover_gpus({}), 25)
        input()
        knob.apply(400)
    """
    owner = driver.start(textwrap.dedent(program))

    def guardians():
        return openers(driver) - known - {owner.pid}

    count = 0 if is_unprivileged() else 1
    wait_until(lambda: len(guardians()) == count)
    assert driver[0].power_limit_watts == ORIGINAL_WATTS
    _, errors = owner.communicate("\n")
    assert len(guardians()) == count, errors
    wait_until(lambda: is_tidy(driver))
    assert driver[0].power_limit_watts == ORIGINAL_WATTS
    assert [call for call in driver.calls("nvmlDeviceSetPowerManagementLimit") if call.code == 0]


def test_a_surviving_forked_child_does_not_prevent_the_original_being_restored(start):
    start("power limit", ENDS["SIGKILL"], FORKED).end()


def test_of_two_processes_on_one_gpu_the_second_is_refused_by_name(start):
    owner = start("power limit", ENDS["SIGKILL"])
    program = """
        from zeus_core.device import discover_gpus
        from zeus_core.errors import DeviceHeldError
        from zeus_core.settings.clock_knob import SmClockKnob
        from zeus_core.settings.limit_knob import PowerLimitKnob

        gpus = discover_gpus({})
        for knob in PowerLimitKnob(gpus, 25), SmClockKnob(gpus[0]):
            print(knob.settings[0])
            try:
                knob.apply(knob.settings[-1])
            except DeviceHeldError as error:
                print(error)
            knob.restore()
    """
    before = owner.driver[0].power_limit_watts
    highest, refusal, _, other_refusal = owner.driver.run(program).splitlines()
    assert highest == "450", "not the trial of the first process"
    assert f"is controlled by process {owner.process.pid}" in refusal
    assert f"is controlled by process {owner.process.pid}" in other_refusal
    assert owner.driver[0].power_limit_watts == before
    assert owner.driver[0].locked_clock_mhz == ORIGINAL_MHZ
    owner.end()
    wait_until(lambda: not entries(owner.driver))
    assert owner.driver.run(program).splitlines() == ["450", "1980"]


def test_runs_that_are_killed_one_after_another_all_find_the_same_original(start, make_driver):
    """Each once took what the one before had left for the original: 350, 250, 150, 100 W."""
    driver = make_driver(DEVICE)
    for _ in range(3):
        owner = start("power limit", driver=driver)
        owner.guardian.kill()
        owner.close()
        assert not owner.is_restored(), "both were killed"
        (entry,) = entries(driver)
        assert entry["original"] == ORIGINAL_WATTS
        owner.guardian.start()
    program = """
        from zeus_core.device import discover_gpus
        from zeus_core.settings.limit_knob import PowerLimitKnob
        import logging
        logging.basicConfig(format="%(message)s")
        print(PowerLimitKnob(discover_gpus({}), 25).settings[0])
    """
    process = driver.start(program)
    output, errors = process.communicate()
    assert output == "450\n"
    said = owner.guardian.said if is_unprivileged() else errors
    assert "to 450 W is restored" in said
    assert re.search(rf"left (behind )?by process {owner.process.pid}\b", said)
    assert driver[0].power_limit_watts == ORIGINAL_WATTS
    assert not list(driver.ledger_path.glob("*.json"))


@pytest.mark.parametrize("knob", long_but_first(KNOBS))
def test_a_guardian_that_was_killed_is_started_again_by_the_next_change(make_driver, knob):
    """The daemon is started by systemd, and the next change finds it."""
    again = """
        say("first")
        input()
        knob.apply(knob.settings[-2])
        knob.apply(knob.settings[-1])
    """
    owner = Owner(make_driver(DEVICE), knob, ENDS["SIGKILL"], again)
    owner.expect("first")
    owner.guardian.kill()
    owner.guardian.start()
    owner.go_on()
    owner.begin().end()
    owner.close()


@pytest.mark.parametrize("knob", long_but_first(KNOBS))
def test_the_guardian_restores_although_the_ledger_is_removed_in_mid_run(start, knob):
    owner = start(knob, ENDS["SIGKILL"])
    if is_unprivileged():
        owner.guardian.remove_ledger()
    else:
        shutil.rmtree(owner.driver.ledger_path)
    owner.end()


@pytest.mark.skipif(is_unprivileged(), reason="the daemon's ledger is root's: see tests/daemon/test_containers.py")
def test_the_guardian_restores_the_original_that_it_knows_itself(start):
    owner = start("power limit", ENDS["SIGKILL"])
    (path,) = owner.driver.ledger_path.glob("*.json")
    path.write_text(path.read_text().replace(f'"original": {ORIGINAL_WATTS}', '"original": 600.0'))
    assert [entry["original"] for entry in entries(owner.driver)] == [600.0]
    owner.end()


@pytest.mark.parametrize("knob", long_but_first(KNOBS))
def test_with_a_stopped_guardian_the_next_start_restores_and_it_stays_harmless(start, knob):
    """A daemon that is stopped restores as it goes on: there is none beside it that could."""
    owner = start(knob)
    owner.guardian.stop()
    try:
        owner.close()
        assert not owner.is_restored()
        if not is_unprivileged():
            owner.driver.run(textwrap.dedent(NEXT).replace("MAKE_KNOB", KNOBS[knob]))
            assert owner.is_restored()
            following = start(knob, ENDS["SIGKILL"], driver=owner.driver)
    finally:
        owner.guardian.go_on()
    if is_unprivileged():
        wait_until(owner.is_restored)
        following = start(knob, ENDS["SIGKILL"], driver=owner.driver)
    else:
        owner.guardian.wait_for_end()
    assert not following.is_restored(), "the value of the process that runs now stays"
    following.end()


def may_lower_oom_score():
    program = "from pathlib import Path; Path('/proc/self/oom_score_adj').write_text('-1000')"
    return subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


@pytest.mark.skipif(not may_lower_oom_score(), reason="NOT TESTED: only CAP_SYS_RESOURCE lowers the OOM score")
def test_the_guardian_outlives_its_owner_where_memory_is_short(start):
    guardian = start("power limit").guardian.process_id
    assert Path(f"/proc/{guardian}/oom_score_adj").read_text() == "-1000\n"


RUNS = 3
NEXT_START = "guardian killed, then the owner: from the next start's first call"


def seconds_of(start, knob, end, before="", driver=None):
    owner = start(knob, ENDS[end], before, driver)
    seconds = owner.end(15 if end == "SIGTERM in C code" else None)
    owner.close()
    wait_until(lambda: not entries(owner.driver))
    return seconds


def seconds_at_the_next_start(start, knob, driver=None):
    owner = start(knob, driver=driver)
    owner.guardian.kill()
    owner.close()
    assert not owner.is_restored(), "both were killed"
    if is_unprivileged():
        begin = owner.guardian.start()
    else:
        begin = float(owner.driver.run(textwrap.dedent(NEXT).replace("MAKE_KNOB", KNOBS[knob])))
    assert owner.is_restored()
    return owner.last_change_seconds() - begin


@pytest.mark.parametrize("knob", long_but_first(KNOBS))
def test_a_forked_child_that_exits_ends_nothing(start, knob):
    """The fixture looks at the GPU after the child's end; then it is restored as usual."""
    seconds_of(start, knob, "SIGKILL", CHILD_EXITS)


@pytest.mark.parametrize("knob", long_but_first(KNOBS))
def test_the_next_start_restores_where_the_guardian_was_killed_before_its_owner(start, knob):
    seconds_at_the_next_start(start, knob)


@pytest.mark.long
@pytest.mark.real_time
def test_it_takes_milliseconds(start, make_driver, capsys):
    """Prints the table: from the end of the process, or the signal, to the call that restored the GPU."""
    rows, driver, knob = [], make_driver(DEVICE), "power limit"

    def add(end, seconds):
        median, longest = statistics.median(seconds), max(seconds)
        rows.append(f"| {end} | {median * 1e3:.1f} | {longest * 1e3:.1f} |")
        assert median < 5.0, f"not even a busy machine takes so long: {rows}"

    for end in ENDS:
        add(end, [seconds_of(start, knob, end, driver=driver) for _ in range(RUNS)])
    seconds = [seconds_of(start, knob, "SIGKILL", CHILD_EXITS, driver) for _ in range(RUNS)]
    add("a forked child exits, nothing happens; then SIGKILL", seconds)
    add(NEXT_START, [seconds_at_the_next_start(start, knob, driver) for _ in range(RUNS)])
    with capsys.disabled():
        print("", "| end | median ms | longest ms |", "|---|---|---|", *rows, sep="\n")
