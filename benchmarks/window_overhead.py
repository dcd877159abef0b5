"""Cost of a measuring window, beside the bare driver calls it must make.

Runs on the tests' own NVML driver, so on any machine with a C compiler. Prints, for 1, 4 and 8 GPUs, the time of
`begin_window` + `end_window` over that of the pynvml calls alone (energy counter and instant power of each GPU, twice),
and what 8 GPUs cost beside one where each driver call takes 2 ms. Then the import time and resident memory of this
package and of its peers, where they are installed. Exits with 1 beyond the limits below.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pynvml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.nvml_driver import DeviceSpec, NoCompilerError, NvmlDriver, build_library  # noqa: E402
from zeus_core.device.cpu import CpuDiscovery  # noqa: E402
from zeus_core.device.nvml.nvml_gpu import NvmlGpu  # noqa: E402
from zeus_core.device.nvml.nvml_session import NvmlSession  # noqa: E402
from zeus_core.monitor import ZeusMonitor  # noqa: E402

LARGEST_RATIO = {1: 2.0, 4: 1.5, 8: 1.5}
LARGEST_SLOW_RATIO = 3.0
CALLS_OF_A_ROUND, ROUNDS = 4, 3000  # so short that a round without other processes is among them on a busy machine too
SLOW_CALL_SECONDS = 0.002
INSTANT_POWER_FIELD = 186
NO_CPUS = CpuDiscovery(cpus=(), unavailable_because="not part of this benchmark")
PEERS = {
    "zeus_core": "from zeus_core.monitor import ZeusMonitor",
    "zeus": "from zeus.monitor import ZeusMonitor",
    "codecarbon": "from codecarbon import EmissionsTracker",
}


def best_of(action: Callable[[], object], calls: int, rounds: int = 15) -> float:
    """Return the seconds of one call in the quickest of some rounds: other processes can only add time."""
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            action()
        seconds.append((time.perf_counter() - begin) / calls)
    return min(seconds)


def bare_pair(driver: NvmlDriver) -> Callable[[], None]:
    handles = [pynvml.nvmlDeviceGetHandleByUUID(device.uuid) for device in driver]

    def pair() -> None:
        for _ in range(2):
            for handle in handles:
                pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
                pynvml.nvmlDeviceGetFieldValues(handle, [INSTANT_POWER_FIELD])

    return pair


def window_pair(driver: NvmlDriver) -> Callable[[], None]:
    session = NvmlSession()
    monitor = ZeusMonitor(gpus=[NvmlGpu(session, device.uuid) for device in driver], cpus=NO_CPUS)

    def pair() -> None:
        monitor.begin_window("step")
        monitor.end_window("step")

    return pair


def compare_with_bare_calls(library: Path) -> bool:
    holds = True
    print(f"{'GPUs':>5} {'bare calls':>12} {'window':>12} {'ratio':>7} {'limit':>6}")
    for count, limit in LARGEST_RATIO.items():
        with tempfile.TemporaryDirectory() as folder:
            driver = NvmlDriver(Path(folder), [DeviceSpec()] * count, library=library)
            driver.load_in_process()
            pynvml.nvmlInit()
            bare, window = (best_of(pair(driver), CALLS_OF_A_ROUND, ROUNDS) for pair in (bare_pair, window_pair))
            driver.close()
        print(f"{count:5d} {bare * 1e6:9.1f} us {window * 1e6:9.1f} us {window / bare:7.2f} {limit:6.1f}")
        holds = holds and window / bare <= limit
    return holds


def compare_slow_drivers(library: Path) -> bool:
    seconds = {}
    for count in (1, 8):
        with tempfile.TemporaryDirectory() as folder:
            driver = NvmlDriver(Path(folder), [DeviceSpec()] * count, library=library)
            driver.load_in_process()
            pair = window_pair(driver)
            driver.set_latency(SLOW_CALL_SECONDS)
            pair()
            seconds[count] = best_of(pair, 5, rounds=5)
            driver.close()
    ratio = seconds[8] / seconds[1]
    print(
        f"2 ms per driver call: 1 GPU {seconds[1] * 1e3:.1f} ms, 8 GPUs {seconds[8] * 1e3:.1f} ms, "
        f"ratio {ratio:.2f} (limit {LARGEST_SLOW_RATIO}; one after another it would be 8)"
    )
    return ratio <= LARGEST_SLOW_RATIO


def compare_imports() -> None:
    program = (
        "import time; resident = lambda: int(open('/proc/self/statm').read().split()[1]) * 4 / 1024;"
        "before, begin = resident(), time.perf_counter(); {statement};"
        "print(time.perf_counter() - begin, resident() - before)"
    )
    for name, statement in PEERS.items():
        runs = [
            subprocess.run([sys.executable, "-c", program.format(statement=statement)], capture_output=True, text=True)
            for _ in range(5)
        ]
        if any(run.returncode != 0 for run in runs):
            print(f"{name}: not installed, not compared")
            continue
        figures = [tuple(map(float, run.stdout.splitlines()[-1].split())) for run in runs]
        seconds = statistics.median(figure[0] for figure in figures)
        megabytes = statistics.median(figure[1] for figure in figures)
        print(f"{name}: import {seconds * 1e3:.0f} ms, {megabytes:.1f} MB more resident")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = build_library(Path(folder))
        except NoCompilerError as error:
            print(f"SKIPPED: {error}")
            return 0
        holds = [compare_with_bare_calls(library), compare_slow_drivers(library)]
    compare_imports()
    return int(not all(holds))


if __name__ == "__main__":
    sys.exit(main())
