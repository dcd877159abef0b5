"""Changes of settings: how long they take to have an effect, what a switch costs, and what a search saves.

Knobs change the GPU, so that its original settings are restored however this process ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from zeus_core.errors import NotSupportedError
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer, MaxSlowdownConstraint
from zeus_core.selfcheck._bench import Bench, Finding
from zeus_core.settings.clock_knob import SmClockKnob
from zeus_core.settings.knob import Knob
from zeus_core.settings.limit_knob import PowerLimitKnob

_LOWER_FRACTION = 0.65  # of the original limit, or of the highest clock: low enough to bind, above most minimums
_POLL_SECONDS = 0.004
_NEAR_FRACTION = 0.1  # of the change of the power: what is left when the change counts as done
_MIN_CHANGE_FRACTION = 0.05  # of the power: a smaller change is hidden by its scatter
_SLOWDOWN_FACTOR = 1.1
_SEARCH_STEPS = 4000  # as in the README's examples: long enough for a search to pay
_SEARCH_SECONDS = 75.0


def check_power_limit(bench: Bench) -> Iterator[Finding]:
    """Lower the power limit and raise it again while the GPU works, and watch the power."""
    calls, effects, note = list[float](), list[float](), ""
    with _restored(PowerLimitKnob([bench.gpu], 5)) as knob:
        original = knob.settings[0]
        lower = min(knob.settings, key=lambda limit: abs(limit - _LOWER_FRACTION * original))
        with bench.running():
            for limit in [lower, original] * bench.count(3, 1):
                call_seconds, trace = _change(knob, limit, bench.gpu.read_power_watts, bench.seconds(2.0, 0.1))
                calls.append(call_seconds)
                effect_seconds = _settled_after(trace)
                if effect_seconds is None:
                    note = f"at {lower} W the power hardly changes: this load draws less, or power does not follow it"
                else:
                    effects.append(effect_seconds)
    yield _times(f"setting the limit, {original} and {lower} W", calls)
    yield _times("until the power has followed", effects, note)


def check_clock(bench: Bench) -> Iterator[Finding]:
    """Lock a lower SM clock while the GPU works, and time single switches and steps between which the clock changes."""
    with _restored(SmClockKnob(bench.gpu)) as knob:
        if not knob.settings:
            raise NotSupportedError(f"the SM clock of {bench.gpu.name} cannot be set")
        highest = knob.settings[0]
        lower = min(knob.settings, key=lambda clock: abs(clock - _LOWER_FRACTION * highest))
        calls, effects = list[float](), list[float]()
        with bench.running():
            for clock in [lower, highest] * bench.count(3, 1):
                call_seconds, trace = _change(knob, clock, bench.gpu.read_sm_clock_mhz, bench.seconds(1.0, 0.1))
                calls.append(call_seconds)
                effect_seconds = _settled_after(trace)
                if effect_seconds is not None:
                    effects.append(effect_seconds)
        yield _times(f"locking the SM clock, {highest} and {lower} MHz", calls)
        note = "" if effects else "the clock that is read does not follow the one that is locked"
        yield _times("until the clock that is read has followed", effects, note)
        yield from _switch_cost(bench, knob, highest, lower)


def _switch_cost(bench: Bench, knob: Knob, highest: int, lower: int) -> Iterator[Finding]:
    """Compare steps at alternating clocks with the mean of steps at one; the time of the calls counts apart."""
    steps = bench.count(60, 4)
    alone = []
    for clock in (highest, lower):
        knob.apply(clock)
        _step_seconds(bench, 2, lambda: None)
        alone.append(_step_seconds(bench, steps, lambda: None))
    clocks = iter([highest, lower] * steps)
    alternating = _step_seconds(bench, 2 * (steps // 2), lambda: knob.apply(next(clocks)))
    yield Finding(
        "a step at the highest clock", 1000 * alone[0], "ms", note=f"at {lower} MHz: {1000 * alone[1]:.2f} ms"
    )
    yield Finding("a step after a switch, longer than without by", 1000 * (alternating - sum(alone) / 2), "ms")


def check_saving(bench: Bench) -> Iterator[Finding]:
    """Search for a power limit in training steps, with at most 10 % more time."""
    optimizer = GlobalPowerLimitOptimizer(
        bench.monitor, MaxSlowdownConstraint(_SLOWDOWN_FACTOR), max_steps=_SEARCH_STEPS, quiet=True
    )
    end, steps = time.monotonic() + bench.seconds(_SEARCH_SECONDS, 0.5), 0
    with optimizer:
        while time.monotonic() < end and optimizer.phase not in {Phase.DONE, Phase.OFF}:
            optimizer.on_step_begin()
            bench.load.step()
            optimizer.on_step_end()
            steps += 1
        bench.load.synchronize()
        is_done, result = optimizer.phase is Phase.DONE, optimizer.result()
        chosen, saving = optimizer.chosen_limit_watts, optimizer.saving_fraction
        uncertainty = optimizer.saving_uncertainty or 0.0
    unfinished = "" if is_done else f"the search had not ended after {steps} steps; "
    yield Finding("limit that the search chose", chosen, "W", note=f"{unfinished}{result.get('slowdown', '')}")
    note = f"+- {100 * uncertainty:.1f} %" if saving is not None else unfinished + "no saving larger than its error"
    yield Finding("energy saved per step", None if saving is None else 100 * saving, "%", note=note)


def check_restored(bench: Bench, original_watts: float) -> Finding:
    """Compare the power limit with that at the beginning."""
    watts = bench.gpu.read_power_limit_watts()
    return Finding(
        "power limit at the end", watts, "W", abs(watts - original_watts) < 1, f"before: {original_watts:g} W"
    )


@contextmanager
def _restored(knob: Knob) -> Iterator[Knob]:
    try:
        yield knob
    finally:
        knob.restore()


def _change(
    knob: Knob, setting: int, read: Callable[[], float], seconds: float
) -> tuple[float, list[tuple[float, float]]]:
    """Apply a setting; return how long that took, and the readings from its beginning on, by their time."""
    trace, begin = [(0.0, float(read()))], time.monotonic()
    knob.apply(setting)
    call_seconds = time.monotonic() - begin
    while (elapsed := time.monotonic() - begin) < seconds:
        trace.append((elapsed, float(read())))
        time.sleep(_POLL_SECONDS)
    return call_seconds, trace


def _settled_after(trace: list[tuple[float, float]]) -> float | None:
    """Return when the readings have come near their last quarter and stay there; None if they hardly change."""
    before = trace[0][1]
    settled = float(np.median([value for _, value in trace[-max(len(trace) // 4, 1) :]]))
    change = abs(settled - before)
    if change < _MIN_CHANGE_FRACTION * max(before, 1.0):
        return None
    away = [elapsed for elapsed, value in trace if (value - settled) * (before - settled) > _NEAR_FRACTION * change**2]
    return next((elapsed for elapsed, _ in trace if elapsed > away[-1]), None)


def _step_seconds(bench: Bench, steps: int, between: Callable[[], object]) -> float:
    """Return the mean time of a step; that of what happens between two steps does not count."""
    total = 0.0
    for _ in range(steps):
        between()
        begin = time.perf_counter()
        bench.load.step()
        bench.load.synchronize()
        total += time.perf_counter() - begin
    return total / steps


def _times(name: str, seconds: list[float], note: str = "") -> Finding:
    if not seconds:
        return Finding(name, None, "ms", note=note)
    spread = f"{1000 * min(seconds):.1f} to {1000 * max(seconds):.1f} ms, {len(seconds)} changes"
    return Finding(name, 1000 * float(np.median(seconds)), "ms", note="; ".join(filter(None, [spread, note])))
