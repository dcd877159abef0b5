"""Cost of late steps of a long training beside early ones: steps, windows, resumes, journals, and runs in a report.

    python benchmarks/growth.py [--steps 1000000] [--only steps windows resumes journals reports]

All in virtual time on a simulated A100, and in CPU time of this process. For each, the cost as it grows, and its limit:

- steps of 10 ms with a log each second and an evaluation each minute: CPU of a step and memory by the number of steps;
- windows of a monitor: the same;
- resumes: CPU of beginning the next part of a run that was killed so often, with a log and a checkpoint in each part;
- journals: CPU and memory of resuming from a journal of so many lines of one part, and again once one stands for all;
- reports: CPU of `zeus-core report` on so many runs, and the size of its page.

Exits with 1 if a late step or window takes more than 1.3 times the CPU of an early one, or memory grows by more than
4 MB, or one of the other numbers is above its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

from zeus_core.cli import main as zeus_core
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.journal import Journal, earlier_account
from zeus_core.training.record.journal_lines import Entry

STEP_SECONDS = 0.01
LATE_FACTOR, GROWTH_MB = 1.3, 4.0
RESUME_SECONDS = 0.05
JOURNAL_SECONDS, JOURNAL_MB = 0.2, 16.0
REPORT_SECONDS, REPORT_MB = 2.0, 1.0
CHUNKS = 100  # of a run, whose costs are compared: the median of ten is that of no passing load of the machine
RUN = "0123456789abcdef0123456789abcdef"


def simulated() -> tuple[SimulatedGpu, ZeusMonitor]:
    """Return a GPU in virtual time, and its monitor."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
    return gpu, ZeusMonitor(gpus=[gpu], time_source=time_source)


def resident_mb() -> float:
    """Return the memory that this process has now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def cpu_seconds(action: Callable[[], object]) -> float:
    """Return the CPU time of an action."""
    begin = time.process_time()
    action()
    return time.process_time() - begin


def is_flat(name: str, count: int, chunk: Callable[[int], object]) -> bool:
    """Print the CPU of one of `count` steps, and the memory, as they grow; return whether they do not."""
    size = max(count // CHUNKS, 1)
    costs, sizes = [], []
    for number in range(CHUNKS):
        costs.append(cpu_seconds(lambda number=number: chunk(size)) / size)  # type: ignore[misc]
        sizes.append(resident_mb())
        if number % 10 == 9:
            cost = statistics.median(costs[-10:])
            print(
                f"  {name} {size * (number + 1):9,}: {cost * 1e6:6.1f} us of CPU each, {sizes[-1]:6.1f} MB", flush=True
            )
    early, late = statistics.median(costs[5:15]), statistics.median(costs[-10:])
    growth = sizes[-1] - sizes[15]
    print(
        f"{name}: a late one takes {late / early:.2f} times an early one (limit {LATE_FACTOR}), and memory grows by "
        f"{growth:.1f} MB (limit {GROWTH_MB:.0f})"
    )
    return late <= LATE_FACTOR * early and growth <= GROWTH_MB


def steps(count: int) -> bool:
    gpu, monitor = simulated()
    work, evaluation = Work(STEP_SECONDS, 300.0), Work(0.5, 200.0)
    every, done = round(1 / STEP_SECONDS), 0
    with tempfile.TemporaryDirectory() as folder, TrainingEnergy(monitor, folder=folder, quiet=True) as energy:

        def train(some: int) -> None:
            nonlocal done
            for _ in range(some):
                with energy.step(samples=8):
                    gpu.execute(work)
                done += 1
                if done % every == 0:
                    energy.log()
                if done % (60 * every) == 0:
                    with energy.during(Activity.EVALUATION):
                        gpu.execute(evaluation)
                    energy.log_evaluation()

        return is_flat("steps", count, train)


def windows(count: int) -> bool:
    gpu, monitor = simulated()
    work = Work(STEP_SECONDS, 300.0)

    def measure(some: int) -> None:
        for _ in range(some):
            with monitor.window("step"):
                gpu.execute(work)

    return is_flat("windows", count, measure)


def resumes(count: int) -> bool:
    """Kill and resume a run again and again, each time from its latest checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        state, step, costs = {}, 0, []
        for number in range(count):
            gpu, monitor = simulated()
            energy = TrainingEnergy(monitor, folder=folder, quiet=True)
            energy.load_state_dict(state)
            costs.append(cpu_seconds(lambda energy=energy, step=step: energy.on_train_begin(step)))  # type: ignore[misc]
            for part in range(3):
                with energy.step(samples=8):
                    gpu.execute(Work(1.5, 300.0))
                energy.log()
                step += 1
                if part == 1:
                    state = json.loads(json.dumps(energy.state_dict()))
            del energy  # killed
            step -= 1
            if number + 1 in {1, 10, 30, 100, 300, 400}:
                cost = statistics.median(costs[-5:])
                print(f"  resumes {number + 1:6,}: {cost * 1e3:6.1f} ms of CPU to begin the next part", flush=True)
    late = statistics.median(costs[-10:])
    print(f"resumes: {late * 1e3:.1f} ms of CPU after {count} (limit {RESUME_SECONDS * 1e3:.0f})")
    return late <= RESUME_SECONDS


def journal_lines(count: int) -> str:
    def entry(step: int) -> Entry:
        total = Tally(float(step), DeviceEnergy(300.125 * step, 7.0 + 0.01 * step))
        activities = dict.fromkeys(Activity, total)
        return Entry(RUN, RUN[::-1], 0, 10 * step, Account(total, activities, samples=step), 1.7e9 + step)

    return "".join(entry(step).to_line() for step in range(1, count + 1))


def journals(_: int) -> bool:
    is_quick = True
    for count in (100, 1_000, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            path, text = Path(folder, "rank-0.jsonl"), journal_lines(count)

            def resume(folder: str = folder, count: int = count) -> None:
                earlier_account(Journal(Path(folder), 0, 1).read(RUN), RUN, 5 * count, 1.8e9)

            costs = []
            for _ in range(3):
                path.write_text(text)
                costs.append(cpu_seconds(resume))
            again, after = cpu_seconds(resume), path.stat().st_size
            path.write_text(text)
            tracemalloc.start()
            resume()
            peak = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
        print(
            f"  journals of {count:6,} lines ({len(text) / 1e6:.1f} MB): {min(costs):.3f} s of CPU, {peak:.1f} MB of "
            f"memory; then {after / 1e6:.2f} MB, {again:.3f} s",
            flush=True,
        )
        is_quick = min(costs) <= JOURNAL_SECONDS and peak <= JOURNAL_MB
    print(f"journals: of 10,000 lines at most {JOURNAL_SECONDS} s and {JOURNAL_MB:.0f} MB")
    return is_quick


def reports(_: int) -> bool:
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        gpu, monitor = simulated()
        with TrainingEnergy(monitor, folder=Path(folder, "run-0"), quiet=True) as energy:
            for _ in range(300):
                with energy.step(samples=8):
                    gpu.execute(Work(1.0, 300.0))
        document = json.loads(Path(folder, "run-0/zeus-energy/run.json").read_text())
        for number in range(1, 1_000):
            document["account"]["total"]["measured"]["energy_joules"] *= 1.001
            path = Path(folder, f"run-{number}/zeus-energy/run.json")
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(document))
        for count in (1, 10, 100, 1_000):
            page = Path(folder, "page.html")
            command = ["report", *(f"{folder}/run-{number}" for number in range(count)), "--output", str(page)]
            cost, size = (
                min(cpu_seconds(lambda command=command: zeus_core(command)) for _ in range(2)),
                page.stat().st_size,
            )  # type: ignore[misc]
            print(f"  reports on {count:5,} runs: {cost:6.3f} s of CPU, {size / 1e6:.2f} MB", flush=True)
            is_good = cost <= REPORT_SECONDS and size <= REPORT_MB * 1e6
    print(f"reports: on 1,000 runs at most {REPORT_SECONDS} s and {REPORT_MB:.0f} MB")
    return is_good


CURVES = {"steps": steps, "windows": windows, "resumes": resumes, "journals": journals, "reports": reports}
SHARE = {"steps": 1.0, "windows": 0.2, "resumes": 1e-4}  # of --steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", choices=CURVES, default=list(CURVES))
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    with contextlib.suppress(KeyboardInterrupt):
        results = [CURVES[name](round(SHARE.get(name, 0.0) * options.steps)) for name in options.only]
        return 0 if all(results) else 1
    return 130


if __name__ == "__main__":
    sys.exit(main())
