"""Results of a power-limit search: a table, a comparison and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from zeus_core.report.figure import new_figure, write_figure
from zeus_core.search import Trial
from zeus_core.search.objectives import OptimumSelector, PowerLimitMeasurement
from zeus_core.units import number_text
from zeus_core.validate import checked_instance, checked_list, checked_number, checked_text, checked_whole_number

_TOO_SLOW = "too slow"


def _joules_per_step_uncertainty(trial: Trial) -> float:
    return (trial.measurement.total_uncertainty_joules or 0.0) / trial.steps


def trial_table(
    measurements: Sequence[PowerLimitMeasurement], steps: int, selector: OptimumSelector, chosen_limit_watts: int | None
) -> str:
    """Return the limits tried as a table, one a line.

    Args:
        measurements: At least one, over `steps` steps each.
        steps: Steps of each measurement.
        selector: The rule of the search. The cost of an `Objective` is a column.
        chosen_limit_watts: The limit to mark.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """
    check = partial(checked_instance, kind=PowerLimitMeasurement, example="PowerLimitMeasurement.from_trial(trial, 40)")
    measurements = checked_list("measurements", measurements, check, "at least one measurement", minimum=1)
    steps = checked_whole_number("steps", steps, 1)
    chosen = _checked_limit(chosen_limit_watts)
    baseline = max(measurements, key=lambda each: each.power_limit)
    unit = selector.objective.cost_unit if selector.objective is not None else ""
    header = f"cost ({unit})" if unit else "cost"
    lines = [f"{'limit':>6} {'s/step':>9} {'J/step':>9} {'time':>7} {'energy':>7} {header:>12}"]
    for each in measurements:
        cost = _cost_text(selector, each, baseline)
        mark = "  <- chosen" if each.power_limit == chosen else ""
        if mark and cost == _TOO_SLOW:  # for one step: a bound is for the run, which may have time left
            cost = ""
        lines.append(
            f"{each.power_limit:4d} W {number_text(each.time / steps):>9} {number_text(each.energy / steps):>9} "
            f"{each.time / baseline.time - 1:+7.1%} {each.energy / baseline.energy - 1:+7.1%} "
            f"{cost:>12}{mark}"
        )
    return "\n".join(lines)


def _checked_limit(limit_watts: int | None) -> int | None:
    return None if limit_watts is None else checked_whole_number("chosen_limit_watts", limit_watts, 1)


def _cost_text(selector: OptimumSelector, measurement: PowerLimitMeasurement, baseline: PowerLimitMeasurement) -> str:
    if selector.objective is None:
        return ""
    cost = selector.objective.cost(measurement, baseline)
    return number_text(cost) if math.isfinite(cost) else _TOO_SLOW


def draw_time_energy(
    trials: Sequence[Trial],
    chosen_limit_watts: int | None,
    title: str,
    path: str | Path,
    bound_factor: float | None = None,
) -> None:
    """Draw time and energy per step at each limit, with the intervals that hold the energies.

    Args:
        trials: The points, one for each limit.
        chosen_limit_watts: The point to mark.
        title: Heading of the picture.
        path: The file to write; its suffix (`.png`, `.svg`) is the format.
        bound_factor: The allowed multiple of the time at the highest limit, for a line; None for no line.

    Raises:
        UsageError: An argument is wrong, matplotlib is not installed, or the suffix is no format.
        OSError: The file cannot be written.
    """
    check = partial(checked_instance, kind=Trial, example="one of optimizer.trials")
    trials = sorted(checked_list("trials", trials, check, "a list of trials"), key=lambda trial: -trial.setting)
    chosen = _checked_limit(chosen_limit_watts)
    checked_text("title", title)
    figure = new_figure(7, 5)
    from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

    axes = figure.add_subplot()
    axes.errorbar(
        [trial.seconds_per_step for trial in trials],
        [trial.joules_per_step for trial in trials],
        yerr=[_joules_per_step_uncertainty(trial) for trial in trials],
        fmt="o-",
        color="#4477aa",
        ecolor="#bbbbbb",
        capsize=3,
        label="measured, with its interval",
    )
    if bound_factor is not None and trials:
        factor = checked_number("bound_factor", bound_factor, 1.0, math.inf, "a number, at least 1, such as 1.02")
        allowed = factor * trials[0].seconds_per_step
        axes.axvline(allowed, color="#228833", linestyle="--", label=f"allowed: {bound_factor:g} times the time")
    for trial in trials:
        point = trial.seconds_per_step, trial.joules_per_step
        axes.annotate(f"{trial.setting} W", point, (7, 6), textcoords="offset points", fontsize=8)
        if trial.setting == chosen:
            axes.plot(*point, "o", markersize=14, fillstyle="none", color="#cc3311", label="chosen")
    axes.margins(x=0.15)  # room for the labels
    axes.legend()
    axes.set_xscale("log")  # the lowest limits take several times as long
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("time per step (s)")
    axes.set_ylabel("energy per step (J)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    write_figure(figure, path)
