"""Allocations: tables of plans and of the shares of their ranks, and a picture of who computes and who waits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from zeus_core.mixed.allocation.allocation_plan import AllocationPlan, RankShare
from zeus_core.mixed.allocation.device_options import checked_kind
from zeus_core.report.figure import new_figure, write_figure
from zeus_core.units import duration_text, energy_text, number_text

_BAR_CELLS = 32
_MAX_ROWS = 40  # of a table or a picture; more cannot be read
_COMPUTING, _WAITING = "#", "."


def allocation_table(plans: Sequence[AllocationPlan]) -> str:
    """Return plans as a table, one a line, relative to the first; with how much cheaper a plan could be at most."""
    first = plans[0]
    lines = [
        f"{'plan':14} {'s/step':>10} {'J/step':>11} {'mean W':>9} {'time':>8} {'energy':>8} {'cost':>8} {'gap':>8}"
    ]
    for plan in plans:
        gap = "" if plan.gap_fraction is None else f"{plan.gap_fraction:8.3%}"
        line = (
            f"{plan.name:14} {number_text(plan.step_seconds):>10} {number_text(plan.energy_joules):>11} "
            f"{number_text(plan.average_power_watts):>9} "
            f"{_change(plan.step_seconds, first.step_seconds)} {_change(plan.energy_joules, first.energy_joules)} "
            f"{_change(plan.cost, first.cost)} {gap:>8}"
        )
        lines.append(line.rstrip())
    return "\n".join(lines)


def _change(value: float | None, original: float | None) -> str:
    return " " * 8 if value is None or not original else f"{value / original - 1:+8.1%}"


def shares_table(plan: AllocationPlan) -> str:
    """Return the shares of the ranks as a table, with a bar of the step: computing, then waiting.

    Ranks beside each other with equal shares are one line.
    """
    groups = [(len(list(ranks)), share) for share, ranks in groupby(plan.ranks)]
    width = max(6, *(len(share.device) for share in plan.ranks))
    lines = [
        f"{'ranks':>9} {'device':{width}} {'batch':>7} {'setting':>9} {'busy':>9} {'waiting':>9}  "
        f"{_COMPUTING} computes {_WAITING} waits"
    ]
    rank = 0
    for count, share in groups[:_MAX_ROWS]:
        names = str(rank) if count == 1 else f"{rank}-{rank + count - 1}"
        waiting = plan.step_seconds - share.busy_seconds
        setting = checked_kind(share.knob).text(share.setting)
        mark = " *" if share.is_extrapolated else ""
        bar = _bar(share, plan.step_seconds)
        lines.append(
            f"{names:>9} {share.device:{width}} {share.batch:7d} {setting:>9} {duration_text(share.busy_seconds):>9} "
            f"{duration_text(waiting):>9}  {bar}{mark}"
        )
        rank += count
    if len(groups) > _MAX_ROWS:
        lines.append(f"... and {len(plan.ranks) - rank} more ranks")
    if any(share.is_extrapolated for share in plan.ranks):
        lines.append("* beyond the batch sizes that were measured at this setting: the prediction is an extrapolation")
    return "\n".join(lines)


def _bar(share: RankShare, step_seconds: float) -> str:
    cells = round(_BAR_CELLS * share.busy_seconds / step_seconds) if step_seconds else 0
    return _COMPUTING * cells + _WAITING * (_BAR_CELLS - cells)


def draw_allocation(plans: Sequence[AllocationPlan], path: str | Path) -> None:
    """Draw who computes and who waits in a step, a panel for each plan, with batch and setting of each rank.

    Args:
        plans: The plans, such as the even one and the best one.
        path: The file to write; its suffix (`.png`, `.svg`) is the format.

    Raises:
        UsageError: matplotlib is not installed, or the suffix is no format.
        OSError: The file cannot be written.
    """
    rows = min(_MAX_ROWS, len(plans[0].ranks))
    figure = new_figure(9, (1.2 + 0.32 * rows) * len(plans))
    panels = figure.subplots(len(plans), 1, squeeze=False)[:, 0]
    longest = max(plan.step_seconds for plan in plans)
    for axes, plan in zip(panels, plans, strict=True):
        _draw_plan(axes, plan, rows)
        axes.set_xlim(0, longest * 1.02)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize="small")
    panels[-1].set_xlabel("time in a step (s)")
    write_figure(figure, path)


def _draw_plan(axes: Any, plan: AllocationPlan, rows: int) -> None:
    shares = plan.ranks[:rows]
    busy = [share.busy_seconds for share in shares]
    places = range(len(shares))
    axes.barh(places, busy, color="#4477aa", label="computes")
    waiting = [plan.step_seconds - seconds for seconds in busy]
    axes.barh(places, waiting, left=busy, color="#dddddd", label="waits")
    for place, share in zip(places, shares, strict=True):
        text = f" {share.batch} samples, {checked_kind(share.knob).text(share.setting)}"
        axes.text(0, place, text, va="center", fontsize="x-small", color="white" if share.batch else "black")
    axes.set_yticks(places, [f"{rank}: {share.device}" for rank, share in enumerate(shares)], fontsize="x-small")
    axes.invert_yaxis()
    more = "" if rows == len(plan.ranks) else f" (the first {rows} of {len(plan.ranks)} ranks)"
    axes.set_title(
        f"{plan.name}: {duration_text(plan.step_seconds)}, {energy_text(plan.energy_joules)}{more}", fontsize="small"
    )
