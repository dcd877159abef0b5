"""How long calls of the driver take, a window beside the calls that it must make, and the hooks of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.selfcheck._bench import Bench, Finding
from zeus_core.training import TrainingEnergy

_INSTANT_POWER_FIELD = 186  # NVML_FI_DEV_POWER_INSTANT
_ROUNDS = 15
_MAX_RATIO = 2.0  # of a window over its bare calls, as benchmarks/window_overhead.py requires for one GPU


def check_calls(bench: Bench) -> Iterator[Finding]:
    """Time each reading, on the idle GPU and on the working one."""
    gpu, count = bench.gpu, bench.count(500, 20)
    calls: dict[str, Callable[[], object]] = {
        "energy counter": gpu.read_energy_counter_joules,
        "power": gpu.read_power_watts,
        "power limit": gpu.read_power_limit_watts,
        "enforced power limit": gpu.read_enforced_power_limit_watts,
        "SM clock": gpu.read_sm_clock_mhz,
    }
    for name, call in calls.items():
        yield _timed(f"{name}, GPU idle", call, count)
    with bench.running():
        found = [_timed(f"{name}, GPU working", call, count) for name, call in calls.items()]
    yield from found


def check_window_overhead(bench: Bench) -> Iterator[Finding]:
    """Time `begin_window` and `end_window` beside the bare calls of the driver: counter and power, twice."""
    pairs = bench.count(300, 20)
    monitor = bench.monitor

    def window() -> None:
        monitor.begin_window("overhead", sync_execution=False)
        monitor.end_window("overhead", sync_execution=False)

    bare, made = _quickest(_bare_pair(bench.gpu), pairs), _quickest(window, pairs)
    yield Finding("bare calls of a window", 1e6 * bare, "us")
    yield Finding("a window", 1e6 * made, "us", note=f"quickest of {_ROUNDS} rounds of {pairs}")
    # On a simulated GPU the calls cost nothing, so that a ratio says nothing.
    holds = None if bench.gpu.is_simulated else made <= _MAX_RATIO * bare
    yield Finding("a window over its bare calls", made / bare, "", holds, f"promised: at most {_MAX_RATIO:g}")


def _timed(name: str, call: Callable[[], object], count: int) -> Finding:
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        try:
            call()
        except DeviceError as error:
            return Finding(name, None, "us", note=str(error))
        seconds.append(time.perf_counter() - begin)
    median, high, longest = 1e6 * np.quantile(seconds, [0.5, 0.95, 1.0])
    return Finding(name, float(median), "us", note=f"95 %: {high:.1f} us, longest {longest:.1f} us")


def _bare_pair(gpu: Gpu) -> Callable[[], object]:
    """Return the calls of the binding that a window must make; on a GPU that is not NVML's, its own readings."""
    if gpu.driver != "nvml":
        return lambda: [(gpu.read_energy_counter_joules(), gpu.read_power_watts()) for _ in range(2)]
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)

    def pair() -> None:
        for _ in range(2):
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            pynvml.nvmlDeviceGetFieldValues(handle, [_INSTANT_POWER_FIELD])

    return pair


def _quickest(action: Callable[[], object], calls: int) -> float:
    """Return the seconds of one call in the quickest round: other processes can only add time."""
    rounds = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            action()
        rounds.append((time.perf_counter() - begin) / calls)
    return min(rounds)


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
