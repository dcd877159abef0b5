"""Cost and size of traces of trainings.

Prints how much longer the training thread computes in the hooks of a step with `trace=True`, against a step of 10 ms,
and the size of the merged trace of an hour of many ranks, whose steps, instructions and updates of counters are
simulated. Exits with 1 if a step takes more than 1 % longer, or the file has more than 50 MB.

    python benchmarks/tracing.py
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from zeus_core.attribution.updates import Knot
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime
from zeus_core.tracing.facts import ClockPoint
from zeus_core.tracing.merge import merge, traces_in
from zeus_core.tracing.recorder import TraceRecorder
from zeus_core.tracing.trace_file import Trace, trace_path, write_trace
from zeus_core.training import TrainingEnergy

STEP_SECONDS = 0.010
LIMIT_FRACTION = 0.01
LIMIT_BYTES = 50e6
STEPS = 3_000
REPEATS = 5
SECONDS = 3600.0
INSTRUCTIONS = [kind for _ in range(8) for kind in ("forward", "receive-gradient", "backward", "send-gradient")]


def seconds_per_step(folder: str, trace: bool) -> float:
    """Return the time of the hooks of a step on a simulated GPU that is read in the background."""
    gpu = SimulatedGpu(find_preset("A100"))
    with TrainingEnergy(ZeusMonitor(gpus=[gpu]), folder=folder, trace=trace, quiet=True) as energy:
        begin = time.thread_time()  # other work of the machine does not count
        for _ in range(STEPS):
            energy.on_step_begin()
            energy.on_step_end()
        return (time.thread_time() - begin) / STEPS


def hook_fraction() -> float:
    """Print and return how much longer a step takes, as a fraction of 10 ms."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = [[seconds_per_step(folder, trace) for trace in (False, True)] for _ in range(REPEATS)]
    without, traced = (min(column) for column in zip(*pairs, strict=True))
    fraction = (traced - without) / STEP_SECONDS
    print(
        f"hooks of a step: {without * 1e6:.1f} us without a trace, {traced * 1e6:.1f} us with one: {fraction:.2%} of a "
        f"{STEP_SECONDS * 1e3:.0f} ms step (limit {LIMIT_FRACTION:.0%})"
    )
    return fraction


class Moment:
    """A device event."""

    def __init__(self, at: float) -> None:
        self._at = at

    def wait(self) -> None:
        """Return."""

    def seconds(self) -> float:
        """Return the moment."""
        return self._at


def knots(begin: float, seed: int) -> Iterator[Knot]:
    """Yield the updates of a counter, known to a millisecond, of a power that scatters."""
    choose, at, joules = random.Random(seed), begin, 1e6
    while True:
        at += 0.1
        joules += 30.0 * choose.gauss(1.0, 0.02)
        yield Knot(at + choose.gauss(0.0, 0.0003), choose.uniform(0.0005, 0.002), round(joules, 3))


def trace_of_an_hour(rank: int, ranks: int, step_seconds: float) -> Trace:
    """Return the trace of one rank that trains for an hour, with evaluations, checkpoints and changes of its limit."""
    time_source, choose = VirtualTime(), random.Random(rank)
    gpu = SimulatedGpu(find_preset("A100"), rank, time_source=time_source)
    recorder = TraceRecorder(time_source, rank, ranks)
    recorder.clock = [ClockPoint(0.0, 0.001, 0.0002), ClockPoint(SECONDS, 0.002, 0.0002)]
    record, counter = recorder.follow(0, gpu), knots(time_source.now(), rank)
    knot = next(counter)
    end, number = time_source.now() + SECONDS, 0
    recorder.begin_activity(time_source.now(), "steps")
    while time_source.now() < end:
        number += 1
        recorder.begin_step(time_source.now())
        each = step_seconds * choose.gauss(1.0, 0.02) / len(INSTRUCTIONS)
        for place, kind in enumerate(INSTRUCTIONS):
            begin = time_source.now()
            time_source.advance(each * choose.gauss(1.0, 0.05))
            arguments = {"microbatch": place // 4, "clock_mhz": 1200 + 15 * (place % 7)}
            recorder.add_instruction(kind, Moment(begin), Moment(time_source.now()), arguments)
        recorder.end_step()
        while knot.at < time_source.now():
            record(knot)
            knot = next(counter)
        if number % 200 == 0:
            recorder.set_to(f"power limit {250 + number % 100} W", "a trial of the search")
            for name, seconds in (("evaluation", 2.0), ("checkpoint", 1.0), ("steps", 0.0)):
                recorder.begin_activity(time_source.now(), name)
                time_source.advance(seconds)
    recorder.end()
    return recorder.to_trace({}, None)


def size_of_an_hour(ranks: int, step_seconds: float) -> int:
    """Print and return the size of the merged trace of an hour of many ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder, events = Path(name), 0
        for rank in range(ranks):
            trace = trace_of_an_hour(rank, ranks, step_seconds)
            events += len(list(trace.events))
            write_trace(trace_path(folder, rank), trace)
        size = write_trace(folder / "all.json.gz", merge(traces_in(folder)).trace)
    print(
        f"an hour of {ranks} ranks, steps of {step_seconds:g} s: {events} events, {size / 1e6:.1f} MB "
        f"(limit {LIMIT_BYTES / 1e6:.0f}); dropped on each rank: {dict(trace.ranks[0].dropped)}"
    )
    return size


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--step-seconds", type=float, default=0.3)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    fraction = hook_fraction()
    size = size_of_an_hour(options.ranks, options.step_seconds)
    return 0 if fraction <= LIMIT_FRACTION and size <= LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
