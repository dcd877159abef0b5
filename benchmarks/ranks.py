"""What a job costs each rank, from 1 to 1,024 ranks: of a log, of the end, of decisions, and of the file of the run.

    python benchmarks/ranks.py [--ranks 1,8,64,256,1024]

The first rank of a job trains in virtual time, with a simulated GPU; the others, eight on a machine, are copies of it that
answer as it does. It costs the first rank most. Messages and bytes are those that `TorchWorld` sends, of n ranks:

    reduce             2 (n - 1) messages in all, of 1,024 bytes; log2(n) of them by the first rank
    gather             the same, and n - 1 messages by each rank, of the longest value
    gather to first    the same, and one message by each other rank

Bytes are what a rank sends: the mean, and what the first rank receives. CPU is that of the thread that trains. Exits with
1 if, at the highest number of ranks, a log takes more than 2 ms of CPU, the end more than 0.3 s, the file of the run more
than 300 kB, a log sends more bytes a rank than 2.5 kB, or a decision costs more than its formula.

A rank sends 2 kB (1 - 1/n) for each reduction. A block of a search makes SEARCH_REDUCTIONS of them, and gathers twice, of
about SEARCH_BYTES together: these grow with the ranks, as a trial holds the energy of each GPU. An exchange of levelling
gathers once, of LEVELLING_BYTES and the times of steps.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from zeus_core.device import SimulatedGpu, Work, find_preset  # noqa: E402
from zeus_core.electricity import ConstantSignal, Electricity  # noqa: E402
from zeus_core.events import Activity  # noqa: E402
from zeus_core.monitor import ZeusMonitor  # noqa: E402
from zeus_core.optimizer import LevellingOptimizer  # noqa: E402
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer, MaxSlowdownConstraint  # noqa: E402
from zeus_core.ports.world import WholeNumbers  # noqa: E402
from zeus_core.testing import VirtualTime  # noqa: E402
from zeus_core.training import TrainingEnergy  # noqa: E402

MAX_LOG_SECONDS, MAX_END_SECONDS, MAX_FILE_BYTES, MAX_LOG_BYTES = 0.002, 0.3, 300e3, 2500
SEARCH_REDUCTIONS, SEARCH_BYTES = 8, 2500
LEVELLING_BYTES = 300

MESSAGE_BYTES, NUMBERS_AT_ONCE = 1024, 96
ELECTRICITY = Electricity(ConstantSignal(380, "g/kWh"), ConstantSignal(0.3, "EUR/kWh"))
WORK = Work(0.1, 300.0, 0.9, 0.8)
LOGS, STEPS = 30, 10


class Traffic(NamedTuple):
    """What was sent between some ranks.

    Attributes:
        reductions: The calls of `reduce`, and the beginnings of others.
        messages: Those that a rank sends, in the mean.
        sent_bytes: The bytes of these.
        first_bytes: What the first rank receives.
    """

    reductions: int = 0
    messages: float = 0.0
    sent_bytes: float = 0.0
    first_bytes: float = 0.0

    def plus(self, *more: float) -> Traffic:
        return Traffic(*(a + b for a, b in zip(self, more, strict=True)))  # type: ignore[arg-type]

    def minus(self, earlier: Traffic) -> Traffic:
        return self.plus(*(-value for value in earlier))


class AlikeWorld:
    """The first of some ranks that all have the same values, but for their devices and machines."""

    rank = 0

    def __init__(self, size: int, uuid: str) -> None:
        self.size = size
        self._uuid = uuid
        self.traffic = Traffic()

    def gather(self, value: Any) -> list[Any]:
        length = len(text := json.dumps(value))
        self._count_reduction(0)
        others = self.size - 1
        self.traffic = self.traffic.plus(0, others, others * length, others * length)
        return self._of_all(text)

    def gather_to_first(self, value: Any) -> list[Any]:
        length = len(text := json.dumps(value))
        self._count_reduction(0)
        others = self.size - 1
        self.traffic = self.traffic.plus(0, others / self.size, length * others / self.size, others * length)
        return self._of_all(text)

    def reduce(self, own: WholeNumbers) -> WholeNumbers:
        self._count_reduction(len(own.sums))
        is_decision = len(own.largest) <= 3  # to which the others add nothing
        return WholeNumbers([number * (1 if is_decision else self.size) for number in own.sums], list(own.largest))

    def _count_reduction(self, numbers: int) -> None:
        sizes = [MESSAGE_BYTES, *([8 * (numbers - NUMBERS_AT_ONCE)] if numbers > NUMBERS_AT_ONCE else [])]
        mean, depth = 2 * (self.size - 1) / self.size, math.ceil(math.log2(self.size))
        self.traffic = self.traffic.plus(1, mean * len(sizes), mean * sum(sizes), depth * sum(sizes))

    def _of_all(self, text: str) -> list[Any]:
        host = platform.node()
        return [json.loads(text)] + [
            json.loads(text.replace(self._uuid, f"{self._uuid}-{rank}").replace(f'"{host}"', f'"node-{rank // 8}"'))
            for rank in range(1, self.size)
        ]


@contextmanager
def cpu(into: list[float]) -> Iterator[None]:
    """Add the CPU time of this thread to a list."""
    begin = time.thread_time()
    yield
    into.append(time.thread_time() - begin)


def one_rank(size: int) -> tuple[SimulatedGpu, ZeusMonitor, AlikeWorld]:
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    return gpu, ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source), AlikeWorld(size, gpu.uuid)


@dataclass
class Costs:
    """What a training costs a rank: CPU seconds of a log and the end, their traffic, and the size of the run file."""

    log_seconds: float
    log: Traffic
    begin_seconds: float
    begin: Traffic
    end_seconds: float
    end: Traffic
    file_bytes: int


def training_costs(size: int) -> Costs:
    gpu, monitor, world = one_rank(size)
    logs, ends, begins = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        energy = TrainingEnergy(monitor, world=world, folder=folder, electricity=ELECTRICITY, quiet=True)
        with cpu(begins):
            energy.on_train_begin()
        begin = world.traffic
        for _ in range(LOGS):
            for _ in range(STEPS):
                with energy.step(samples=8, tokens=1000):
                    gpu.execute(WORK)
            with energy.during(Activity.EVALUATION):
                gpu.execute(WORK)
            before = world.traffic
            with cpu(logs):
                energy.log()
            of_log = world.traffic.minus(before)
        before = world.traffic
        with cpu(ends):
            energy.finish()
            energy.on_train_end()
        assert energy.summary is not None
        assert energy.summary.account.samples == size * LOGS * STEPS * 8
        file_bytes = (Path(folder) / "zeus-energy" / "run.json").stat().st_size
    return Costs(median(logs), of_log, sum(begins), begin, sum(ends), world.traffic.minus(before), file_bytes)


class Decisions(NamedTuple):
    """What decisions cost: how many there were, the CPU seconds of the costliest, and the traffic of one."""

    count: int
    most_seconds: float
    traffic: Traffic


def decisions_of(size: int, make: Callable[[ZeusMonitor, AlikeWorld], Any], steps: int, least: float) -> Decisions:
    """Train under an optimizer; a step whose hooks send at least so many bytes is a decision."""
    gpu, monitor, world = one_rank(size)
    optimizer = make(monitor, world)
    optimizer.on_train_begin()
    seconds, traffics = list[float](), list[Traffic]()
    for _ in range(steps):
        before, spent = world.traffic, list[float]()
        with cpu(spent):
            optimizer.on_step_begin()
        gpu.execute(WORK)
        with cpu(spent):
            optimizer.on_step_end()
        traffic = world.traffic.minus(before)
        if traffic.reductions >= least:
            seconds.append(sum(spent))
            traffics.append(traffic)
    optimizer.on_train_end()
    count = max(len(traffics), 1)
    mean = Traffic(*(sum(values) / count for values in zip(*traffics, strict=True))) if traffics else Traffic()
    return Decisions(len(traffics), max(seconds, default=0.0), mean)


def search_decisions(size: int) -> Decisions:
    return decisions_of(
        size,
        lambda monitor, world: GlobalPowerLimitOptimizer(
            monitor, MaxSlowdownConstraint(1.1), world=world, max_steps=600, quiet=True
        ),
        600,
        3,
    )


def levelling_decisions(size: int) -> Decisions:
    if size == 1:
        return Decisions(0, 0.0, Traffic())
    return decisions_of(size, lambda monitor, world: LevellingOptimizer(monitor, world=world, quiet=True), 100, 1)


def shown(traffic: Traffic) -> str:
    return f"{traffic.messages:8.1f} messages, {traffic.sent_bytes:9.0f} B a rank, {traffic.first_bytes:9.0f} B to the first"


def main() -> int:
    """Print the costs for each number of ranks. Returns 1 if the last of them exceeds a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,8,64,256,1024", help="numbers of ranks")
    beyond = []
    for size in map(int, parser.parse_args().ranks.split(",")):
        costs, search, levelling = training_costs(size), search_decisions(size), levelling_decisions(size)
        print(f"{size} ranks")
        print(f"    begin      {costs.begin_seconds * 1e3:8.1f} ms CPU {shown(costs.begin)}")
        print(f"    log        {costs.log_seconds * 1e3:8.2f} ms CPU {shown(costs.log)}")
        print(f"    end        {costs.end_seconds * 1e3:8.1f} ms CPU {shown(costs.end)}")
        print(f"    run file   {costs.file_bytes / 1e3:8.1f} kB")
        for name, decisions in (("search", search), ("levelling", levelling)):
            print(
                f"    {name:10} {decisions.most_seconds * 1e3:8.1f} ms CPU {shown(decisions.traffic)}, of {decisions.count}"
            )
        others = size - 1
        checks = [
            ("CPU of a log, s", costs.log_seconds, MAX_LOG_SECONDS),
            ("CPU of the end, s", costs.end_seconds, MAX_END_SECONDS),
            ("run file, bytes", costs.file_bytes, MAX_FILE_BYTES),
            ("bytes of a log, a rank", costs.log.sent_bytes, MAX_LOG_BYTES),
            ("bytes of a block of a search, a rank", search.traffic.sent_bytes, 0),
            ("bytes of an exchange of levelling, a rank", levelling.traffic.sent_bytes, 0),
        ]
        beyond = [
            f"{size} ranks: {what} is {value:.4g}, limit {limit:.4g}" for what, value, limit in checks if value > limit
        ]
    print("\n".join(beyond) or "all within the limits")
    return bool(beyond)


if __name__ == "__main__":
    sys.exit(main())
