"""The update period of an energy counter, and whether it covers the GPU or its module, by watching it for a moment.

Drivers do not report the period, and it differs between products: 20 ms on V100, mostly 100 ms on later ones.

On boards with a CPU in the module, such as GH200 and GB200, the counter counts the CPU too, and with two GPUs in a
module it is the same for both, while the power field has a scope. Energy and power are of the GPU everywhere else, so a
counter of the module is not used: the power is integrated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from zeus_core.ports.time_source import MonotonicTime, TimeSource

_POLL_SECONDS = 0.001  # a twentieth of the shortest known period; a reading takes 0.05 ms or more

_WATCH_SECONDS = 0.25  # two updates of the slowest known counter (100 ms); more would delay the first window
_MAX_WATCH_SECONDS = 0.55  # where it was updated once by then: two updates of a counter of 0.25 s
_ENOUGH_UPDATES = 7  # the error of two edges, 2 ms, over six periods of 20 ms is 2 %
_NOMINAL_SECONDS = (0.01, 0.02, 0.025, 0.05, 0.1, 0.2, 0.25)  # a measurement near one of these is taken for it
_NEAR_FRACTION = 0.15  # covers polling errors, and keeps 20 and 25 ms apart

_MODULES = ("GH200", "GB200", "GB300")  # for drivers that do not say it by a limit or a power of the module
_COMPARE_SECONDS = 1.0
_STILL_SECONDS = 0.35  # without an update: three periods of the slowest known counters
_MODULE_RATIO = 1.2  # of counter to GPU; the sensor is known to 5 %, the CPU draws 50 W or more
_SAME = 1.05  # module to GPU: less is the same


def _updates(
    read_joules: Callable[[], float], time_source: TimeSource | None, patience_seconds: Callable[[int], float]
) -> Iterator[tuple[float, float, float]]:
    """Yield the two times between which each update of a counter happened, and what it shows since.

    How long it is polled depends on the number of updates so far.
    """
    time_source = time_source or MonotonicTime()
    begin = after = time_source.now()
    latest_joules, count = read_joules(), 0
    while (now := time_source.now()) - begin < patience_seconds(count):
        joules = read_joules()
        if joules != latest_joules:
            count += 1
            yield after, time_source.now(), joules
        after, latest_joules = now, joules
        time_source.sleep(_POLL_SECONDS)


def watch_counter_period_seconds(
    read_counter_joules: Callable[[], float], time_source: TimeSource | None = None
) -> float | None:
    """Measure the time between two updates of a counter; None if it is not updated twice in half a second.

    One that is not updated at all is given up after a quarter of a second.

    Args:
        read_counter_joules: Reads the counter. Its errors are passed on.
        time_source: Source of the times of the readings; real time by default.
    """
    seen_at: list[float] = []
    patience = {1: _MAX_WATCH_SECONDS}
    for _, until, _ in _updates(read_counter_joules, time_source, lambda count: patience.get(count, _WATCH_SECONDS)):
        seen_at.append(until)
        if len(seen_at) == _ENOUGH_UPDATES:
            break
    if len(seen_at) < 2:
        return None
    # A busy machine may let an update pass between two polls: then an interval is of two periods.
    intervals_seconds = sorted(later - earlier for earlier, later in pairwise(seen_at))
    median_seconds = intervals_seconds[(len(intervals_seconds) - 1) // 2]
    alike_seconds = [seconds for seconds in intervals_seconds if seconds < 1.5 * median_seconds]
    seconds = sum(alike_seconds) / len(alike_seconds)
    nearest_seconds = min(_NOMINAL_SECONDS, key=lambda nominal: abs(nominal - seconds))
    return nearest_seconds if abs(nearest_seconds - seconds) <= _NEAR_FRACTION * nearest_seconds else seconds


def may_be_of_module(name: str, has_module_limit: bool, gpu_watts: float, module_watts: float | None) -> bool:
    """Whether a counter may cover a module: by the product name, a limit of the module, or a power of it."""
    has_module_power = module_watts is not None and module_watts > _SAME * gpu_watts
    return has_module_limit or has_module_power or any(module in name for module in _MODULES)


def compare_counter(
    read_counter_joules: Callable[[], float],
    read_gpu_watts: Callable[[], float],
    read_module_watts: Callable[[], float | None],
    time_source: TimeSource | None = None,
) -> str | None:
    """Compare a counter with the power over two updates or more, until they differ or agree for sure.

    Args:
        read_counter_joules: Reads the counter.
        read_gpu_watts: Reads the power of the GPU.
        read_module_watts: Reads that of the module; None where the driver does not know it.
        time_source: Source of the times of the readings; real time by default.

    Returns:
        Why the counter is not that of the GPU; None if it is.
    """
    powers: list[tuple[float, float]] = []

    def read_joules() -> float:
        joules, gpu_watts = read_counter_joules(), read_gpu_watts()
        powers.append((gpu_watts, read_module_watts() or gpu_watts))
        return joules

    updates = _updates(read_joules, time_source, lambda count: _COMPARE_SECONDS if count else _STILL_SECONDS)
    compared = None
    first_after, first_until, first_joules = next(updates, (0.0, 0.0, 0.0))  # without a first one, none follows
    powers.clear()
    for after, until, joules in updates:
        if after <= first_until:
            continue
        gpu_watts, module_watts = (sum(watts) / len(watts) for watts in zip(*powers, strict=True))
        border_watts = _MODULE_RATIO * gpu_watts
        if module_watts > _SAME * gpu_watts:
            border_watts = (gpu_watts * module_watts) ** 0.5  # nearer to the one or the other, in proportion
        # Each of the two updates happened between two polls, which bounds the power that the counter shows.
        counted_joules = joules - first_joules
        least_watts, most_watts = counted_joules / (until - first_after), counted_joules / (after - first_until)
        compared = (least_watts + most_watts) / 2, gpu_watts, border_watts
        if not least_watts <= border_watts <= most_watts:
            break
    if compared is None:
        return "the energy counter may cover the whole module, and did not move while it was compared with the power"
    counter_watts, gpu_watts, border_watts = compared
    if counter_watts <= border_watts:
        return None
    shares = f"{counter_watts:.0f} W now, of which the GPU draws {gpu_watts:.0f} W"
    return f"the energy counter covers the whole module, {shares}"
