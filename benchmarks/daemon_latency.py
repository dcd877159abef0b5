"""Cost of a change through the daemon, beside the same change made by the process itself.

Runs on the tests' own NVML driver, whose calls take no time, so on any machine with a C compiler. Prints the time of
setting a power limit: directly, by one client of the daemon, and by one client while eight others change their GPUs as
fast as a real driver lets them, which takes 5 ms or more for each change. Beside both, what the machine and Python take
at that time: a process that sends back what it gets, in a thread for each client. Then how long the guardian of a
process takes to start, ahead of the first change, and what it and the daemon occupy. Exits with 1 beyond the limits
below. The processor time of a change says more than its time where other processes run.

Each time is that of the quietest of ten rounds, as other processes of the machine can only add to it; the median round
follows in parentheses.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.nvml_driver import DeviceSpec, NoCompilerError, NvmlDriver, build_library  # noqa: E402
from zeus_core.device.nvml.nvml_gpu import NvmlGpu  # noqa: E402
from zeus_core.device.nvml.nvml_session import NvmlSession  # noqa: E402
from zeus_core.device.remote.client import RemoteControl  # noqa: E402

MEDIAN_MICROSECONDS = 150.0
BUSY_P99_MICROSECONDS = 1000.0
BUSY_CLIENTS = 8
DRIVER_SECONDS = 0.005  # of a change by a real driver
# A round is the most that the daemon lets a user ask at once (`Allotment`); after the pause, it may be asked again.
CHANGES, ROUNDS, PAUSE_SECONDS = 400, 10, 0.12
GUARDIAN_MEGABYTES, GUARDIAN_SECONDS = 25.0, 0.25
ORIGINAL_WATTS = 650.0
SPEC = DeviceSpec(power_limit_watts=ORIGINAL_WATTS)

ECHO = """
import socket, sys, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
def answer(connection):
    try:
        while request := connection.recv(4096):
            connection.send(request[:40])
    except ConnectionError:  # its client was ended
        return
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""

BUSY_ECHO_CLIENT = """
import socket, sys, time
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
while True:
    connection.send(bytes(110))
    connection.recv(4096)
    time.sleep({DRIVER_SECONDS})
"""

BUSY_CLIENT = """
import sys, time
from zeus_core.device.remote.client import RemoteControl
remote = RemoteControl(sys.argv[1], "power_limit")
watts = 300
while True:
    remote.set(watts)
    watts = 300 + (watts + 1) % 100
    time.sleep({DRIVER_SECONDS})
"""

OWNER = """
import time
from zeus_core.device import discover_gpus
from zeus_core.settings.limit_knob import PowerLimitKnob
gpus = discover_gpus({})[:1]
begin = time.monotonic()
knob = PowerLimitKnob(gpus, 50)
time.sleep(0.5)  # a search lets the first steps of training pass
first = time.monotonic()
knob.apply(400)
print(begin, time.monotonic() - first, flush=True)
time.sleep(60)
"""


def rounds_of(change: Callable[[float], object], pause_seconds: float = 0.0) -> list[list[float]]:
    """Return the microseconds of each change, sorted, of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        time.sleep(PAUSE_SECONDS)
        taken = []
        for number in range(CHANGES):
            watts = 300.0 + number % 100
            begin = time.perf_counter()
            change(watts)
            taken.append((time.perf_counter() - begin) * 1e6)
            if pause_seconds:
                time.sleep(pause_seconds)
        rounds.append(sorted(taken))
    return rounds


def best_of(rounds: list[list[float]], fraction: float) -> float:
    """Return a quantile, of the round in which it is lowest: other processes can only add time."""
    return min(taken[int(fraction * CHANGES)] for taken in rounds)


def described(name: str, rounds: list[list[float]]) -> str:
    quantiles = []
    for fraction in (0.5, 0.99):
        usual = statistics.median(taken[int(fraction * CHANGES)] for taken in rounds)
        quantiles.append(f"p{fraction * 100:.0f} {best_of(rounds, fraction):5.0f} us ({usual:5.0f})")
    return f"{name:40} {'   '.join(quantiles)}"


def compared(name: str, rounds: list[list[float]], echo: list[list[float]]) -> str:
    ratios = [best_of(rounds, fraction) / best_of(echo, fraction) for fraction in (0.5, 0.99)]
    return f"{described(name, rounds)}   {ratios[0]:.1f} and {ratios[1]:.1f} times an echo"


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def start_daemon(folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "zeus_core", "daemon", "--audit", str(folder / "audit.jsonl")]
    daemon = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert daemon.stderr is not None
    while "GPU(s) at" not in (line := daemon.stderr.readline()):
        assert line, "the daemon has not started"
    return daemon


def main() -> int:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))  # as /run is
    try:
        library = build_library(folder)
    except NoCompilerError as error:
        print(error)
        return 0
    driver = NvmlDriver(folder, [SPEC] * (BUSY_CLIENTS + 1), library=library)
    driver.load_in_process()
    names = {"ZEUS_DAEMON_SOCKET": str(folder / "daemon.sock"), "ZEUS_LEDGER_DIR": str(folder / "ledger")}
    os.environ.update(names)
    environment = {**os.environ, **driver.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    session = NvmlSession()
    session.read_uuids()
    gpu = NvmlGpu(session, driver[0].uuid)
    daemon = start_daemon(folder, environment)
    try:
        print(described("direct, with the enforced limit read", rounds_of(direct(gpu))))
        driver[0].power_limit_watts = ORIGINAL_WATTS
        echo, busy_echo = measure_echo(folder, environment)
        alone, busy, microseconds = measure_daemon(driver, environment, daemon.pid)
        print(described("an echo, one client", echo))
        print(compared("by the daemon, one client", alone, echo))
        print(described(f"an echo, beside {BUSY_CLIENTS} clients", busy_echo))
        print(compared(f"by the daemon, beside {BUSY_CLIENTS} busy clients", busy, busy_echo))
        print(
            f"the daemon computes {microseconds:.0f} us for each change of one client, and occupies "
            f"{resident_megabytes(daemon.pid):.1f} MB"
        )
        seconds, change_seconds, megabytes = measure_guardian(driver, environment)
        print(
            f"a guardian is ready {seconds * 1e3:.0f} ms after a knob was made, and occupies {megabytes:.1f} MB; "
            f"the first change, half a second later, takes {change_seconds * 1e3:.1f} ms"
        )
    finally:
        end([daemon])
        driver.close()
    is_fast = best_of(alone, 0.5) <= MEDIAN_MICROSECONDS and best_of(busy, 0.99) <= BUSY_P99_MICROSECONDS
    return 0 if is_fast and seconds <= GUARDIAN_SECONDS and megabytes <= GUARDIAN_MEGABYTES else 1


def end(processes: Iterable[subprocess.Popen[Any]]) -> None:
    for process in processes:
        process.terminate()
        process.wait()


def start_clients(program: str, arguments: Iterable[str], environment: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    program = program.replace("{DRIVER_SECONDS}", str(DRIVER_SECONDS))
    return [subprocess.Popen([sys.executable, "-c", program, argument], env=environment) for argument in arguments]


def measure_daemon(
    driver: NvmlDriver, environment: dict[str, str], pid: int
) -> tuple[list[list[float]], list[list[float]], float]:
    """Return the times of changes by the daemon: of one client alone, and beside busy ones; and what one computes."""
    remote = RemoteControl(driver[0].uuid, "power_limit")
    before = processor_seconds(pid)
    alone = rounds_of(remote.set)
    microseconds = (processor_seconds(pid) - before) / (ROUNDS * CHANGES) * 1e6
    clients = start_clients(BUSY_CLIENT, [device.uuid for device in driver.devices[1:]], environment)
    try:
        while sum(device.power_limit_watts != ORIGINAL_WATTS for device in driver.devices[1:]) < BUSY_CLIENTS:
            time.sleep(0.01)
        busy = rounds_of(remote.set, DRIVER_SECONDS)
    finally:
        end(clients)
    remote.release()
    return alone, busy, microseconds


def measure_echo(folder: Path, environment: dict[str, str]) -> tuple[list[list[float]], list[list[float]]]:
    """Return the times of an echo of a request's size: of one client alone, and beside others."""
    path = str(folder / "echo.sock")
    server = subprocess.Popen([sys.executable, "-c", ECHO, path], env=environment, stdout=subprocess.PIPE)
    clients: list[subprocess.Popen[bytes]] = []
    connection = socket.socket(socket.AF_UNIX)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        connection.connect(path)

        def ask(watts: float) -> None:
            connection.send(bytes(110))
            connection.recv(4096)

        alone = rounds_of(ask)
        clients = start_clients(BUSY_ECHO_CLIENT, [path] * BUSY_CLIENTS, environment)
        time.sleep(0.5)  # until they run
        return alone, rounds_of(ask, DRIVER_SECONDS)
    finally:
        connection.close()
        end([*clients, server])


def measure_guardian(driver: NvmlDriver, environment: dict[str, str]) -> tuple[float, float, float]:
    """Return the seconds until a guardian is ready, those of the first change, both the least of three, and its MB."""
    seconds, change_seconds, megabytes = [], [], 0.0
    for _ in range(3):
        driver.clear_calls()
        owner = subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        begin, change = map(float, owner.stdout.readline().split())
        change_seconds.append(change)
        while not (opened := [call for call in driver.calls("nvmlInit") if call.process_id != owner.pid]):
            time.sleep(0.002)
        seconds.append(opened[0].seconds - begin)
        time.sleep(0.1)
        megabytes = resident_megabytes(opened[0].process_id)
        owner.kill()
        owner.communicate()
        while driver[0].power_limit_watts != ORIGINAL_WATTS:
            time.sleep(0.002)
    return min(seconds), min(change_seconds), megabytes


def direct(gpu: NvmlGpu) -> Callable[[float], object]:
    def change(watts: float) -> None:
        gpu.set_power_limit(watts)
        gpu.read_enforced_power_limit_watts()

    return change


if __name__ == "__main__":
    sys.exit(main())
