"""The cost of a job for each rank, from 1 to 1,024 ranks: logs, begin and end, decisions, and the size of the run file.

    python benchmarks/ranks.py [--ranks 1,8,64,256,1024]

The first rank of a job trains in virtual time, with a simulated GPU; the others, eight on a machine, are copies of it
that answer as it does. The first rank is the one that everything costs most. Messages and bytes are those that
`TorchWorld` sends in a job of n ranks:

    reduce             2 (n - 1) messages of 1,024 bytes in all, of which each rank sends three at most
    gather             the same, and n - 1 messages by each rank, each as long as the longest value
    gather to first    the same, and a message by each other rank, as long as the longest value

So a reduction costs a rank 2 (1 - 1/n) messages in the mean, in a job of any size. A decision of the first rank is one
of them, longer by what is beyond 768 bytes. Bytes are those that a rank sends in the mean, and those that the first one
receives. CPU is that of the thread that trains; the median of logs, and the most of a decision.

Per rank and decision, in bytes, which are checked as limits:

    log                2,048, whatever n is
    block of a search  21,000 + 42 n: a trial has the energy of each GPU
    levelling          6,200 + 7 n in the mean of 99 exchanges, the first of which sends the settings of all ranks
    plan of batches    2,500 + 52 n, once: a plan has the share of each rank

Exits with 1 where these are exceeded, or where a log takes more than 2 ms of CPU, the end more than 0.3 s, or the run
file has more than 300 kB.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
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

from zeus_core.codec import encode  # noqa: E402
from zeus_core.device import SimulatedGpu, Work, find_preset  # noqa: E402
from zeus_core.electricity import ConstantSignal, Electricity  # noqa: E402
from zeus_core.events import Activity  # noqa: E402
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan, RankShare  # noqa: E402
from zeus_core.mixed.levelling import LevellingOptimizer  # noqa: E402
from zeus_core.monitor import ZeusMonitor  # noqa: E402
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer, MaxSlowdownConstraint  # noqa: E402
from zeus_core.ports.exchange import Exchange  # noqa: E402
from zeus_core.ports.world import WholeNumbers  # noqa: E402
from zeus_core.testing import VirtualTime  # noqa: E402
from zeus_core.training import TrainingEnergy  # noqa: E402

MAX_LOG_SECONDS, MAX_END_SECONDS, MAX_FILE_BYTES = 0.002, 0.3, 300e3
LOG_BYTES = (2048, 0)  # of any job, and for each rank of it
SEARCH_BYTES, LEVELLING_BYTES, PLAN_BYTES = (21_000, 42), (6200, 7), (2500, 52)

_FRACTION = re.compile(r"(\.\d{6})\d{6,}")

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
        self._random = random.Random(size)
        self.traffic = Traffic()
        self.own_seconds = 0.0  # CPU of making up what others send

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
        mean, below = 2 * (self.size - 1) / self.size, min(self.size - 1, 2)
        self.traffic = self.traffic.plus(1, mean * len(sizes), mean * sum(sizes), below * sum(sizes))

    def _of_all(self, text: str) -> list[Any]:
        begin = time.thread_time()
        host, texts = platform.node(), [text]
        for rank in range(1, self.size):
            other = text.replace(self._uuid, f"{self._uuid}-{rank}").replace(f'"{host}"', f'"node-{rank // 8}"')
            texts.append(_FRACTION.sub(self._other_digits, other))
        self.own_seconds += time.thread_time() - begin
        return list(map(json.loads, texts))

    def _other_digits(self, fraction: re.Match[str]) -> str:
        """Return other digits after the first six, as no two GPUs have the same energies."""
        return f"{fraction[1]}{self._random.randrange(10**9):09}"


@contextmanager
def cpu(into: list[float], world: AlikeWorld) -> Iterator[None]:
    """Add the CPU time of this thread to a list, without that of the simulated ranks."""
    begin, own_seconds = time.thread_time(), world.own_seconds
    yield
    into.append(time.thread_time() - begin - (world.own_seconds - own_seconds))


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
        with cpu(begins, world):
            energy.on_train_begin()
        begin = world.traffic
        for _ in range(LOGS):
            for _ in range(STEPS):
                with energy.step(samples=8, tokens=1000):
                    gpu.execute(WORK)
            with energy.during(Activity.EVALUATION):
                gpu.execute(WORK)
            before = world.traffic
            with cpu(logs, world):
                energy.log()
            of_log = world.traffic.minus(before)
        before = world.traffic
        with cpu(ends, world):
            energy.finish()
            energy.on_train_end()
        assert energy.summary.not_measured is None
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
        with cpu(spent, world):
            optimizer.on_step_begin()
        gpu.execute(WORK)
        with cpu(spent, world):
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


def plan_decisions(size: int) -> Decisions:
    """Send a plan of as many batches, from the first rank to all."""
    _, _, world = one_rank(size)
    digits, model = random.Random(size), "NVIDIA A100-SXM4-80GB"
    shares = tuple(
        RankShare(model, 128, 275, digits.uniform(0.1, 0.2), digits.uniform(30, 40), False, "power limit")
        for _ in range(size)
    )
    plan = AllocationPlan("a plan", shares, 0.23, 1234.5, 0.01, "energy", 1234.5, 1234.5)
    spent = list[float]()
    with cpu(spent, world):
        Exchange(world).decide(lambda: encode(plan))
    return Decisions(1, sum(spent), world.traffic)


def shown(traffic: Traffic) -> str:
    sent = f"{traffic.messages:7.1f} messages, {traffic.sent_bytes:8.0f} B a rank"
    return f"{sent}, {traffic.first_bytes:8.0f} B to the first"


def beyond(size: int) -> list[str]:
    """Print the costs for a number of ranks. Returns those beyond their limits."""
    costs = training_costs(size)
    decisions = {
        "search": (search_decisions(size), SEARCH_BYTES),
        "levelling": (levelling_decisions(size), LEVELLING_BYTES),
        "plan": (plan_decisions(size), PLAN_BYTES),
    }
    print(f"{size} ranks")
    print(f"    begin      {costs.begin_seconds * 1e3:8.1f} ms CPU {shown(costs.begin)}")
    print(f"    log        {costs.log_seconds * 1e3:8.2f} ms CPU {shown(costs.log)}")
    print(f"    end        {costs.end_seconds * 1e3:8.1f} ms CPU {shown(costs.end)}")
    print(f"    run file   {costs.file_bytes / 1e3:8.1f} kB")
    for name, (one, _) in decisions.items():
        print(f"    {name:10} {one.most_seconds * 1e3:8.1f} ms CPU {shown(one.traffic)}; {one.count} decisions")
    checks = [
        ("CPU of a log, s", costs.log_seconds, MAX_LOG_SECONDS),
        ("CPU of the end, s", costs.end_seconds, MAX_END_SECONDS),
        ("run file, bytes", costs.file_bytes, MAX_FILE_BYTES),
        ("log, bytes a rank", costs.log.sent_bytes, LOG_BYTES[0]),
        *(
            (f"{name}, bytes a rank", one.traffic.sent_bytes, base + each * size)
            for name, (one, (base, each)) in decisions.items()
        ),
    ]
    for what, value, limit in checks:
        print(f"    {'BEYOND' if value > limit else 'within'} {what}: {value:.4g}, limit {limit:.4g}")
    return [what for what, value, limit in checks if value > limit]


def main() -> int:
    """Print the costs for each number of ranks. Returns 1 if one exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,8,64,256,1024", help="numbers of ranks")
    sizes = [int(size) for size in parser.parse_args().ranks.split(",")]
    return int(any(list(map(beyond, sizes))))


if __name__ == "__main__":
    sys.exit(main())
