"""Pictures of planning a pipeline: of the frontier, and of the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zeus_core.pipeline import TRANSFER_KINDS, Frontier, PipelineProfile, Plan, Problem
from zeus_core.report.figure import new_figure, write_figure
from zeus_core.validate import checked_instance, checked_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["draw_timelines"]

_MAX_READABLE_MICROBATCHES = 32  # bars of more are a few pixels wide
_ENLARGED_MICROBATCHES = 6


def draw_frontier(frontier: Frontier, plans: Sequence[Plan], path: str | Path) -> None:
    """Draw the frontier, with plans as points.

    Args:
        frontier: The line.
        plans: The points, named in the legend.
        path: The file to write; its suffix (`.png`, `.svg`) is the format.

    Raises:
        UsageError: matplotlib is not installed, or the suffix is no format.
        OSError: The file cannot be written.
    """
    figure = new_figure(7, 5)
    axes = figure.add_subplot()
    axes.plot(frontier.times_seconds, frontier.energies_joules / 1e3, color="#4477aa", label="frontier")
    for plan, marker in zip(plans, "osD^vP*X" * len(plans), strict=False):
        axes.plot(plan.time_seconds, plan.energy_joules / 1e3, marker, label=plan.name, markersize=8)
    axes.set_xlabel("iteration time (s)")
    axes.set_ylabel("energy per iteration (kJ)")
    axes.set_title(f"Time and energy of {frontier.problem.schedule.name}, {frontier.problem.profile.stages} stages")
    axes.grid(alpha=0.3)
    axes.legend()
    _add_percent_scales(axes, *frontier.highest_clock_point)
    write_figure(figure, path)


def _add_percent_scales(axes: Any, seconds: float, joules: float) -> None:
    """Add scales of the slowdown and the saving over the highest clocks, in percent."""
    slower = (lambda x: 100 * (x / seconds - 1), lambda percent: seconds * (1 + percent / 100))
    axes.secondary_xaxis("top", functions=slower).set_xlabel("slower than at the highest clocks (%)")
    if joules > 0:
        saved = (lambda y: 100 * (1 - 1e3 * y / joules), lambda percent: joules * (1 - percent / 100) / 1e3)
        axes.secondary_yaxis("right", functions=saved).set_ylabel("saved (%)")


def draw_timelines(profile: PipelineProfile, plans: Sequence[Plan], path: str | Path) -> None:
    """Draw the instructions of each rank over time, coloured by the power of one GPU, with a panel for each plan.

    With many microbatches a further panel enlarges some of the middle of the last plan, where it repeats itself.

    Args:
        profile: The profile the plans were made from.
        plans: The plans, such as that of the highest clocks and that of the frontier.
        path: The file to write; its suffix (`.png`, `.svg`) is the format.

    Raises:
        UsageError: An argument is wrong, matplotlib is not installed, a plan was made from another profile, or the
            suffix is no format.
        OSError: The file cannot be written.
    """
    checked_instance("profile", profile, PipelineProfile, "PipelineProfile.from_csv(path, 80)")
    plans = checked_list("plans", plans, partial(checked_instance, kind=Plan, example="make_plan(...)"), "plans", 1)
    shown = [(plan, 0.0, max(each.time_seconds for each in plans), "") for plan in plans]
    last = plans[-1]
    if last.schedule.microbatches > _MAX_READABLE_MICROBATCHES:
        width = last.time_seconds * _ENLARGED_MICROBATCHES / last.schedule.microbatches
        shown.append((last, (last.time_seconds - width) / 2, width, ", enlarged"))
    figure = new_figure(12, 1 + 2.6 * len(shown))
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    bars = [_bars(profile, plan) for plan, _, _, _ in shown]
    highest = max(float(watts.max()) for _, _, _, watts in bars)
    for axes, (plan, begin, width, note), (ranks, starts, durations, watts) in zip(panels, shown, bars, strict=True):
        colored = _draw_bars(axes, ranks, starts, durations, watts, highest)
        axes.set_title(f"{plan.name}{note}: {plan.time_seconds:.3f} s, {plan.energy_joules / 1e3:.2f} kJ")
        axes.set_ylabel("rank")
        axes.set_yticks(range(len(plan.schedule.ranks)))
        axes.set_ylim(len(plan.schedule.ranks) - 0.5, -0.5)
        axes.set_xlim(begin, begin + width)
    panels[-1].set_xlabel("time (s)")
    figure.colorbar(colored, ax=list(panels), label="power of one GPU (W); white: waiting")
    write_figure(figure, path)


def _bars(profile: PipelineProfile, plan: Plan) -> tuple[NDArray[np.float64], ...]:
    """Return rank, start, duration and power of each instruction that takes time."""
    result = plan.execution(profile)
    problem = Problem(profile, plan.schedule)
    rows = []
    instructions, options = problem.graph.instructions, plan.options(problem)
    for (kind, stage, _), option, start in zip(instructions, options, result.start_seconds, strict=True):
        if kind not in TRANSFER_KINDS:
            one_gpu_joules = option.cost_joules / profile.gpus[stage]
            watts = one_gpu_joules / option.time_seconds + profile.blocking_power_watts[stage]
            rows.append((plan.schedule.rank_of_stage[stage], start, option.time_seconds, watts))
    return tuple(np.array(rows).T)


def _draw_bars(axes: Any, ranks: Any, starts: Any, durations: Any, watts: Any, highest: float) -> Any:
    from matplotlib.collections import PolyCollection

    low, high, end = ranks - 0.42, ranks + 0.42, starts + durations
    corners: Any = np.stack([starts, low, end, low, end, high, starts, high], axis=1).reshape(-1, 4, 2)
    collection = PolyCollection(corners, array=watts, cmap="viridis_r", edgecolors="white", linewidths=0.3)
    collection.set_clim(0, highest)
    return axes.add_collection(collection)
