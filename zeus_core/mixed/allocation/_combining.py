"""Whole batches for one duration: dynamic programming over those that cost hardly more than the relaxation.

At the price of the relaxation, a batch of a device costs at least what the device's best one costs. The excess of all
devices together is what a plan costs more than the relaxation. So a batch whose own excess is above the excess of a
known plan is in no better plan, and few are left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeus_core.mixed.allocation._allocation_problem import AllocationProblem, Relaxed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.float64]
    _Units = NDArray[np.int64]

_MAX_COMBINED = 96  # devices; the gap of more is small without, and the time would be long
_MAX_BATCHES = 4096  # of one device, that are looked at one by one
_MAX_COMBINATIONS = 1_500_000  # looked at for all devices together: some 0.15 s
_ROUNDING = 1e-9  # of an excess: sums of costs are off by less


class Combined(NamedTuple):
    """The result of `combine`.

    Attributes:
        units: The units of each device; None if no plan is as cheap as asked for.
        is_complete: Whether every cheaper plan was looked at.
        combinations: How many were looked at.
    """

    units: _Units | None
    is_complete: bool
    combinations: int


class _Menu(NamedTuple):
    """The batches of a device: units and excess, by rising units."""

    device: int
    units: _Units
    excess: _Numbers
    is_complete: bool  # or some batches were not looked at


def combine(
    problem: AllocationProblem, relaxed: Relaxed, longest_seconds: float, spare: float, is_thorough: bool = True
) -> Combined:
    """Return the cheapest whole batches whose slowest rank takes no longer than a time.

    Args:
        problem: The problem.
        relaxed: Its relaxation for this time.
        longest_seconds: The time.
        spare: Plans whose excess is above are of no interest.
        is_thorough: Whether to combine batches; else only what is left over is given to a device or two.
    """
    most = np.maximum(problem.most_units(longest_seconds).max(axis=1), 0)
    base = _base(problem, relaxed)
    plan = _with_rest(problem, base, most, longest_seconds)
    excess = float(problem.best_options(plan, longest_seconds)[0].sum()) - relaxed.cost
    spare = min(spare, excess) * (1.0 + _ROUNDING)
    if spare < 0.0:
        return Combined(None, True, 0)
    if not is_thorough:
        return Combined(plan if excess <= spare else None, False, 0)
    combined = _devices_to_combine(problem, relaxed)
    menus = []
    for device in combined.tolist():
        units, is_all = _units_to_combine(problem, int(base[device]), int(most[device]))
        reduced = problem.lowest_costs(device, units, longest_seconds) - relaxed.price * units
        excess_of_units = reduced - reduced.min()
        kept = excess_of_units <= spare
        menus.append(_Menu(device, units[kept], excess_of_units[kept], is_all))
    is_complete = len(menus) == problem.devices and all(menu.is_complete for menu in menus)
    menus.sort(key=lambda menu: len(menu.units))
    target = problem.units - int(base.sum()) + int(base[combined].sum())
    found, looked_at, is_whole = _sums(menus, target, spare)
    if found is None:
        # The excess of this plan, which takes the rest as it can, may be below that of all that were combined.
        return Combined(plan if excess <= spare else None, is_complete and is_whole, looked_at)
    units = base.copy()
    units[[menu.device for menu in menus]] = found
    return Combined(units, is_complete and is_whole, looked_at)


def count_costs(problem: AllocationProblem) -> int:
    """Return of how many batches and options, of all devices, `combine` compares the costs, about."""
    return problem.devices * min(problem.units, _MAX_BATCHES) * problem.options


def _base(problem: AllocationProblem, relaxed: Relaxed) -> _Units:
    """Return batches that cost as little as the relaxation, and as many as wanted, or a little fewer."""
    base: _Units = relaxed.fewer.copy()
    rest = problem.units - int(base.sum())
    further = relaxed.more - relaxed.fewer
    for device in np.flatnonzero(further).tolist():
        if further[device] <= rest:
            base[device] += further[device]
            rest -= int(further[device])
    return base


def _with_rest(problem: AllocationProblem, base: _Units, most: _Units, longest_seconds: float) -> _Units:
    """Return the batches with the rest given to the device that does it at the lowest cost, or to several."""
    rest = problem.units - int(base.sum())
    plan: _Units = base.copy()
    if rest == 0:
        return plan
    costs, _ = problem.best_options(base, longest_seconds)
    with_rest, _ = problem.best_options(np.minimum(base + rest, most), longest_seconds)
    further = np.where(base + rest <= most, with_rest - costs, math.inf)
    if math.isfinite(further.min()):
        plan[np.argmin(further)] += rest
        return plan
    for device in range(problem.devices):
        part = min(rest, int(most[device] - plan[device]))
        plan[device] += part
        rest -= part
    return plan


def _devices_to_combine(problem: AllocationProblem, relaxed: Relaxed) -> _Units:
    """Return all devices; of many, some of every kind, and the first that the relaxation leaves open."""
    if problem.devices <= _MAX_COMBINED:
        return np.arange(problem.devices, dtype=np.int64)
    spread = np.linspace(0, problem.devices - 1, _MAX_COMBINED).astype(np.int64)
    left_open = np.flatnonzero(relaxed.more != relaxed.fewer)
    chosen: _Units = np.unique(np.concatenate([spread[len(left_open[:4]) :], left_open[:4]]))
    return chosen


def _units_to_combine(problem: AllocationProblem, base: int, most: int) -> tuple[_Units, bool]:
    """Return all units that a device may be given, or those near its base and some others, and whether it is all."""
    least = problem.min_units
    if most <= _MAX_BATCHES:
        return np.arange(least, most + 1, dtype=np.int64), True
    near = np.arange(max(base - _MAX_BATCHES // 4, least), min(base + _MAX_BATCHES // 4, most) + 1)
    others = np.linspace(least, most, _MAX_BATCHES // 2).astype(np.int64)
    units: _Units = np.unique(np.concatenate([near, others]))
    return units, False


def _sums(menus: Sequence[_Menu], target: int, spare: float) -> tuple[_Units | None, int, bool]:
    """Return the batch of each menu with the lowest excess whose sum is the target.

    Returns:
        The batches, or None; how many combinations were looked at; and whether that was all that could matter.
    """
    lowest = [*np.cumsum([int(menu.units[0]) for menu in menus][::-1])[::-1].tolist(), 0]
    highest = [*np.cumsum([int(menu.units[-1]) for menu in menus][::-1])[::-1].tolist(), 0]
    sums, excess = np.zeros(1, np.int64), np.zeros(1)
    trail: list[tuple[_Units, _Units]] = []
    looked_at, is_whole = 0, True
    for place, menu in enumerate(menus):
        units, excess_of_units = menu.units, menu.excess
        if len(sums) * len(units) > _MAX_COMBINATIONS // len(menus):
            is_whole = False
            most = max(1, _MAX_COMBINATIONS // len(menus) // len(sums))
            best = np.sort(np.argsort(excess_of_units, kind="stable")[:most])
            units, excess_of_units = units[best], excess_of_units[best]
        looked_at += len(sums) * len(units)
        all_sums, all_excess = sums[:, None] + units, excess[:, None] + excess_of_units
        kept = all_excess <= spare
        kept &= (all_sums >= target - highest[place + 1]) & (all_sums <= target - lowest[place + 1])
        before, chosen = np.nonzero(kept)
        if not len(before):
            return None, looked_at, is_whole
        sums, excess = all_sums[kept], all_excess[kept]
        order = np.lexsort((excess, sums))
        first = order[np.flatnonzero(np.diff(sums[order], prepend=-1))]  # the lowest excess of each sum
        sums, excess = sums[first], excess[first]
        trail.append((before[first], units[chosen[first]]))
    found, row = [], 0
    for before, units in reversed(trail):
        found.append(int(units[row]))
        row = int(before[row])
    return np.array(found[::-1]), looked_at, is_whole
