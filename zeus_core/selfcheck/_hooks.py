"""The cost of the hooks in a training step."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from zeus_core.selfcheck._bench import Bench, Finding
from zeus_core.training import TrainingEnergy

_MAX_FRACTION = 0.01  # of a step: benchmarks/callback_overhead.py requires 0.5 % of 10 ms; the rest is for this machine


def check_hooks(bench: Bench) -> Iterator[Finding]:
    """Train with `TrainingEnergy` and without, block after block in turn, and time the hooks themselves too."""
    steps = _steps_of_a_block(bench)
    plain, hooked, in_hooks = list[float](), list[float](), list[float]()
    for _ in range(bench.count(6, 2)):
        plain.append(_plain_block(bench, steps))
        step_seconds, hook_seconds = _hooked_block(bench, steps)
        hooked.append(step_seconds)
        in_hooks.append(hook_seconds)
    step, cost = float(np.median(plain)), float(np.median(in_hooks))
    differences = 100 * (np.array(hooked) / np.array(plain) - 1)
    yield Finding("a step without hooks", 1000 * step, "ms", note=f"{len(plain)} blocks of {steps} steps")
    yield Finding("time in the hooks of a step", 1e6 * cost, "us")
    yield Finding("the same, of a step", 100 * cost / step, "%", cost <= _MAX_FRACTION * step)
    yield Finding(
        "a step with hooks, longer than one without by",
        float(np.median(differences)),
        "%",
        note=f"blocks: {min(differences):.2f} to {max(differences):.2f} %, the scatter of the steps included",
    )


def _steps_of_a_block(bench: Bench) -> int:
    bench.load.step()
    bench.load.synchronize()
    seconds = _plain_block(bench, bench.count(10, 2))
    return max(round(bench.seconds(2.5, 0.1) / seconds), 2)


def _plain_block(bench: Bench, steps: int) -> float:
    """Return the seconds of a step."""
    load = bench.load
    load.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        load.step()
    load.synchronize()
    return (time.perf_counter() - begin) / steps


def _hooked_block(bench: Bench, steps: int) -> tuple[float, float]:
    """Return the seconds of a step, and those of its hooks."""
    load, energy = bench.load, TrainingEnergy(bench.monitor, quiet=True)
    hook_seconds = 0.0
    with energy:
        with energy.step():  # the first one prepares what later ones use
            load.step()
        load.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            entered = time.perf_counter()
            energy.on_step_begin()
            left = time.perf_counter()
            load.step()
            ended = time.perf_counter()
            energy.on_step_end()
            hook_seconds += left - entered + time.perf_counter() - ended
        load.synchronize()
        seconds = time.perf_counter() - begin
    return seconds / steps, hook_seconds / steps
