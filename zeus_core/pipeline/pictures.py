"""Pictures of planning a pipeline: of the frontier, and of the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pipeline.planner.frontier.frontier import Frontier
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem
from zeus_core.pipeline.planner.pipeline_profile import PipelineProfile
from zeus_core.pipeline.planner.pipeline_schedule import TRANSFER_KINDS
from zeus_core.report.figure import new_figure, write_figure
from zeus_core.units import duration_text, energy_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["draw_timelines"]

_MAX_READABLE_MICROBATCHES = 32  # bars of more are a few pixels wide
_ENLARGED_MICROBATCHES = 6
_WAITING, _HATCH = "#e4e4e4", "///"


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
    axes.plot(frontier.times_seconds, frontier.energies_joules / 1e3, color="#4477aa", label="least energy")
    points: dict[tuple[str, str], list[Plan]] = {}  # plans that lie on each other would hide each other
    for plan in plans:
        points.setdefault((duration_text(plan.time_seconds), energy_text(plan.energy_joules)), []).append(plan)
    for here, marker in zip(points.values(), "osD^vP*X" * len(points), strict=False):
        label = ", ".join(dict.fromkeys(plan.name for plan in here))
        axes.plot(here[0].time_seconds, here[0].energy_joules / 1e3, marker, label=label, markersize=8)
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

    Backward passes are hatched, and grey is a rank that waits.

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
    if not plans:
        raise UsageError("plans is []; give at least one plan, such as make_plan(...)")
    shown = [(plan, 0.0, max(each.time_seconds for each in plans), "") for plan in plans]
    last = plans[-1]
    if last.schedule.microbatches > _MAX_READABLE_MICROBATCHES:
        width = last.time_seconds * _ENLARGED_MICROBATCHES / last.schedule.microbatches
        shown.append((last, (last.time_seconds - width) / 2, width, ", enlarged"))
    figure = new_figure(12, 1 + 2.6 * len(shown))
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    bars = [_bars(profile, plan) for plan, _, _, _ in shown]
    span = [float(end([end(each[-1]) for each in bars])) for end in (np.min, np.max)]
    for axes, (plan, begin, width, note), each in zip(panels, shown, bars, strict=True):
        colored = _draw_bars(axes, plan.time_seconds, *each)
        colored.set_clim(*span)
        axes.set_title(f"{plan.name}{note}: {duration_text(plan.time_seconds)}, {energy_text(plan.energy_joules)}")
        axes.set_ylabel("rank")
        axes.set_yticks(range(len(plan.schedule.ranks)))
        axes.set_ylim(len(plan.schedule.ranks) - 0.5, -0.5)
        axes.set_xlim(begin, begin + width)
    panels[-1].set_xlabel("time (s)")
    figure.colorbar(colored, ax=list(panels), label="power of one GPU (W)")
    figure.legend(handles=_legend(), loc="outside upper right", ncols=3, fontsize="small")
    write_figure(figure, path)


def _bars(profile: PipelineProfile, plan: Plan) -> tuple[NDArray[np.float64], ...]:
    """Return each instruction that takes time: whether it is a backward pass, its rank, start, duration and power."""
    result = plan.execution(profile)
    problem = PipelineProblem(profile, plan.schedule)
    rows = []
    instructions, options = problem.graph.instructions, plan.options(problem)
    for (kind, stage, _), option, start in zip(instructions, options, result.start_seconds, strict=True):
        if kind not in TRANSFER_KINDS:
            one_gpu_joules = option.cost_joules / profile.gpus[stage]
            watts = one_gpu_joules / option.time_seconds + profile.blocking_power_watts[stage]
            rows.append(
                (kind.startswith("backward"), plan.schedule.rank_of_stage[stage], start, option.time_seconds, watts)
            )
    return tuple(np.array(rows).T)


def _draw_bars(
    axes: Any, end_seconds: float, is_backward: Any, ranks: Any, starts: Any, durations: Any, watts: Any
) -> Any:
    """Draw bars over grey rows, hatched where a pass is backward; return those that have a colour for each power."""
    from matplotlib.collections import PolyCollection

    axes.barh(np.unique(ranks), end_seconds, height=0.84, color=_WAITING, zorder=0)
    low, high, end = ranks - 0.42, ranks + 0.42, starts + durations
    corners: Any = np.stack([starts, low, end, low, end, high, starts, high], axis=1).reshape(-1, 4, 2)
    colored = axes.add_collection(
        PolyCollection(corners, array=watts, cmap="viridis_r", edgecolors="white", linewidths=0.3)
    )
    hatched = corners[is_backward.astype(bool)]
    axes.add_collection(PolyCollection(hatched, facecolors="none", edgecolors="white", hatch=_HATCH, linewidths=0))
    return colored


def _legend() -> list[Any]:
    from matplotlib.patches import Patch

    power: dict[str, Any] = {"facecolor": "#31688e", "edgecolor": "white"}
    return [
        Patch(label="forward", **power),
        Patch(label="backward", hatch=_HATCH, **power),
        Patch(label="waits", color=_WAITING),
    ]
