"""Saving of clocks for each activity in real time, by a driver whose calls take long, beside that in virtual time.

    python benchmarks/activity_switches.py [--cycles 50] [--latency 0.01 0.05]

A cycle is 2.4 s of text generation and a training step of 1.6 s on a simulated H100, under a bound of 1.05 for the
whole run: at 50 ms, a visit of less than 20 changes of the clock would have none of its own. In real time each change
of the clock goes through the tests' own NVML driver, where it takes so many seconds. Prints the energy saved and the
slowdown, beside a run in real time that changes nothing, the changes, how long they took, and the calls on the
training's thread within visits and steps. Exits with 1 if a run realises less than 85 % of the saving in virtual
time, or if there is such a call. Run it with nothing beside it: the scatter of a busy machine is that of the steps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.nvml_driver import DeviceSpec, NvmlDriver  # noqa: E402
from zeus_core.device import SimulatedGpu, Work, find_preset  # noqa: E402
from zeus_core.device.cpu import CpuDiscovery  # noqa: E402
from zeus_core.device.nvml.nvml_gpu import NvmlGpu  # noqa: E402
from zeus_core.device.nvml.nvml_session import NvmlSession  # noqa: E402
from zeus_core.monitor import ZeusMonitor  # noqa: E402
from zeus_core.optimizer import EnergyWithin, GlobalClockOptimizer  # noqa: E402
from zeus_core.ports import TimeSource  # noqa: E402
from zeus_core.ports.time_source import MonotonicTime  # noqa: E402
from zeus_core.testing import VirtualTime  # noqa: E402
from zeus_core.training import TrainingEnergy  # noqa: E402

SHARE = 0.85
BOUND = 1.05
GENERATION, STEP = Work(2.4, 300.0, 1.0, 0.05), Work(1.6, 620.0, 1.0, 0.85)


class SlowlySet(SimulatedGpu):
    """A simulated GPU whose clock is locked by a driver, too, and as late as there."""

    def __init__(self, time_source: TimeSource, board: NvmlGpu | None) -> None:
        super().__init__(find_preset("H100"), time_source=time_source)
        self._board = board
        self.threads: list[threading.Thread] = []

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Lock the clock of the board, and then the simulated one."""
        self.threads.append(threading.current_thread())
        if self._board is not None:
            self._board.lock_sm_clock(clock_mhz)
        super().lock_sm_clock(clock_mhz)

    def unlock_sm_clock(self) -> None:
        """Unlock them."""
        self.threads.append(threading.current_thread())
        if self._board is not None:
            self._board.unlock_sm_clock()
        super().unlock_sm_clock()


class Outcome(NamedTuple):
    """The energy and time of a run, and its changes."""

    joules: float
    seconds: float
    changes: int
    changing_seconds: float
    on_own_thread: int


def train(time_source: TimeSource, cycles: int, board: NvmlGpu | None = None, observes: bool = False) -> Outcome:
    """Train, and return the energy of all cycles."""
    gpu = SlowlySet(time_source, board)
    monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery((), "not simulated"), time_source=time_source)
    search = GlobalClockOptimizer(
        monitor,
        EnergyWithin(BOUND),
        activities="each",
        changes_per_hour=10**6,
        max_steps=cycles,
        mode="observe" if observes else "search",
    )
    began, joules, at_step_ends = time_source.now(), gpu.exact_energy_joules(), 0
    with TrainingEnergy(monitor, search, quiet=True) as energy:
        for _ in range(cycles):
            calls = len(gpu.threads)
            with energy.during("generation"):
                gpu.execute(GENERATION)
            energy.on_step_begin()
            gpu.execute(STEP)
            at_step_ends += sum(one is threading.current_thread() for one in gpu.threads[calls:])
            energy.on_step_end()
        limiter = search._search.limiter
        return Outcome(
            gpu.exact_energy_joules() - joules,
            time_source.now() - began,
            limiter.switches,
            limiter.switching_seconds,
            0 if isinstance(time_source, VirtualTime) else at_step_ends,
        )


def main() -> int:
    """Print a row for each latency."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--latency", type=float, nargs="+", default=[0.01, 0.05])
    arguments = parser.parse_args()
    untouched = train(VirtualTime(), arguments.cycles, observes=True)
    virtual = train(VirtualTime(), arguments.cycles)

    def in_real_time(latency: float) -> Outcome:
        with tempfile.TemporaryDirectory() as folder, NvmlDriver(Path(folder), [DeviceSpec()]) as driver:
            driver.load_in_process()
            for function in ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"):
                driver.set_latency(latency, function)
            return train(MonotonicTime(), arguments.cycles, NvmlGpu(NvmlSession(), driver[0].uuid))

    real, has_failed = train(MonotonicTime(), arguments.cycles, observes=True), False
    saving = 1 - virtual.joules / untouched.joules
    print(f"virtual time: saves {saving:.1%} for {virtual.seconds / untouched.seconds - 1:+.1%} time")
    for latency in arguments.latency:
        found = in_real_time(latency)
        realised = (1 - found.joules / real.joules) / saving
        has_failed |= realised < SHARE or found.on_own_thread > 0
        print(
            f"{1000 * latency:.0f} ms: saves {1 - found.joules / real.joules:.1%}, {realised:.0%} of that, for "
            f"{found.seconds / real.seconds - 1:+.1%} time; {found.changes} changes took "
            f"{found.changing_seconds:.2g} s; {found.on_own_thread} calls on the training's thread",
            flush=True,
        )
    return has_failed


if __name__ == "__main__":
    sys.exit(main())
