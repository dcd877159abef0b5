"""The outcome of a power-limit search, for people: a table, a comparison and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from zeus_core.errors import UsageError
from zeus_core.report._comparison import StepCost
from zeus_core.search import Objective, OptimumSelector, PowerLimitMeasurement, Trial

__all__ = ["draw_time_energy", "step_cost", "trial_table"]


def step_cost(trial: Trial) -> StepCost:
    """What a step took in a trial."""
    uncertainty_joules = trial.measurement.total_uncertainty_joules or 0.0
    return StepCost(trial.seconds_per_step, trial.joules_per_step, uncertainty_joules / trial.steps)


def trial_table(
    measurements: Sequence[PowerLimitMeasurement], steps: int, selector: OptimumSelector, chosen_limit_watts: int | None
) -> str:
    """The limits tried, one a line.

    Args:
        measurements: At least one, over `steps` steps each.
        steps: Steps of each measurement.
        selector: What was best. If it is an `Objective`, its cost is a column.
        chosen_limit_watts: This line is marked.
    """
    baseline = max(measurements, key=lambda it: it.power_limit)
    lines = [f"{'limit':>6} {'s/step':>9} {'J/step':>9} {'time':>7} {'energy':>7} {'cost':>12}"]
    for it in measurements:
        cost = _cost_text(selector, it, baseline)
        mark = "  <- chosen" if it.power_limit == chosen_limit_watts else ""
        lines.append(
            f"{it.power_limit:4d} W {it.time / steps:9.4f} {it.energy / steps:9.2f} "
            f"{it.time / baseline.time - 1:+7.1%} {it.energy / baseline.energy - 1:+7.1%} {cost:>12}{mark}"
        )
    return "\n".join(lines)


def _cost_text(selector: OptimumSelector, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> str:
    if not isinstance(selector, Objective):
        return ""
    cost = selector.cost(measurement, baseline)
    return f"{cost:.1f}" if math.isfinite(cost) else "too slow"


def draw_time_energy(trials: Sequence[Trial], chosen_limit_watts: int | None, title: str, path: Path) -> None:
    """Draw time and energy per step at each limit.

    Args:
        trials: What to draw, the baseline first.
        chosen_limit_watts: This point is marked.
        title: Heading of the picture.
        path: Where to write; the suffix (`.png`, `.svg`) says in which format.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter
    except ImportError as error:
        raise UsageError("drawing needs matplotlib: pip install 'zeus-core[plot]'") from error
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    costs = {trial.setting: step_cost(trial) for trial in trials}
    axes.errorbar(
        [cost.seconds for cost in costs.values()],
        [cost.joules for cost in costs.values()],
        yerr=[cost.joules_uncertainty for cost in costs.values()],
        fmt="o-",
        color="#4477aa",
        ecolor="#bbbbbb",
        capsize=3,
    )
    for setting, cost in costs.items():
        axes.annotate(f"{setting} W", (cost.seconds, cost.joules), (7, 6), textcoords="offset points", fontsize=8)
    if chosen_limit_watts in costs:
        chosen = costs[chosen_limit_watts]
        axes.plot(chosen.seconds, chosen.joules, "o", markersize=14, fillstyle="none", color="#cc3311", label="chosen")
        axes.legend()
    axes.set_xscale("log")  # the lowest limits take several times as long
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("time per step (s)")
    axes.set_ylabel("energy per step (J)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.savefig(path)
