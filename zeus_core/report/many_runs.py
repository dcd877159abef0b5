"""Many runs in one report: which of them are shown in full, and a table with a row for each. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from zeus_core.events import Activity
from zeus_core.report.run_metrics import Quantity, metrics_of
from zeus_core.report.run_sections import activities_in_order, energy_line, hardware, saving_line
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import duration_text, energy_text, number_text

_MOST_IN_FULL = 12  # columns side by side, and pages: more are not read
_OF_EACH_KIND = 3
_UNITS = ("token", "sample", "step")
_COLUMNS = (
    "run",
    "GPUs",
    "energy",
    "time",
    "mean power",
    "steps",
    "for each",
    "outside of steps, or done twice",
    "saved",
)

Runs = Sequence[tuple[str, RunRecord]]


def are_many(runs: Runs) -> bool:
    """Whether there are too many to show each in full."""
    return len(runs) > _MOST_IN_FULL


def runs_in_full(runs: Runs, notes: Sequence[tuple[str, bool]] = ()) -> dict[int, str]:
    """Return the numbers of the runs to show in full, in their order, and why each is; no reason where all are.

    If there are many, these are the ones with the most energy, those with the largest possible gain
    (`unproductive_joules`), and the worst: those that a condition has failed, and those that take the most for a token,
    sample or step compared with the median of the runs on the same GPUs.

    Args:
        runs: The runs.
        notes: Sentences that begin with the name of a run, and whether they are bad news.
    """
    if not are_many(runs):
        return dict.fromkeys(range(len(runs)), "")
    energies = {number: run.account.total.measured_joules for number, (_, run) in enumerate(runs)}
    gains = {number: unproductive_joules(run) for number, (_, run) in enumerate(runs)}
    bad = [text for text, is_bad in notes if is_bad]
    failed = {number: 1.0 for number, (name, _) in enumerate(runs) if any(text.startswith(f"{name}: ") for text in bad)}
    kinds: list[tuple[dict[int, float], Callable[[float], str]]] = [
        (energies, lambda value: f"one of the largest energies, {energy_text(value)}"),
        (
            gains,
            lambda value: f"one of the largest possible gains, {energy_text(value)} outside of steps or done twice",
        ),
        (failed, lambda _: "failed the condition"),
        (
            _excess(runs),
            lambda value: f"{number_text(value)} times the energy of the median run on such GPUs for the same work",
        ),
    ]
    found: dict[int, list[str]] = {}
    for values, reason in kinds:
        for number in sorted(values, key=lambda number: -values[number])[:_OF_EACH_KIND]:
            if values[number] > 0:
                found.setdefault(number, []).append(reason(values[number]))
    return {number: "; ".join(found[number]) for number in sorted(found)}


def unproductive_joules(run: RunRecord) -> float:
    """Return the energy between steps, idle, and of steps that were done again: as far as it was measured."""
    activities = run.account.activities
    idle = [activities[each] for each in (Activity.IDLE, Activity.BETWEEN_STEPS) if each in activities]
    return sum(tally.measured_joules for tally in (*idle, run.account.redone))


def _excess(runs: Runs) -> dict[int, float]:
    """Return by which factor runs take more for a token, sample or step than the median of those on the same GPUs."""
    groups: dict[tuple[str, str], dict[int, float]] = {}
    for number, (_, run) in enumerate(runs):
        unit, quantity = _for_each(metrics_of(run))
        if quantity is not None:
            groups.setdefault((hardware(run), unit), {})[number] = quantity.value
    medians = {group: statistics.median(values.values()) for group, values in groups.items()}
    return {
        number: value / medians[group]
        for group, values in groups.items()
        for number, value in values.items()
        if value > medians[group] > 0
    }


def _for_each(metrics: dict[str, Quantity]) -> tuple[str, Quantity | None]:
    unit = next((unit for unit in _UNITS if f"energy_per_{unit}_j" in metrics), "")
    return unit, metrics.get(f"energy_per_{unit}_j")


def table_of(runs: Runs) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the columns of a table, and a row for each run: that with the most energy first."""
    rows: list[tuple[str, ...]] = []
    for name, run in sorted(runs, key=lambda named: -named[1].account.total.measured_joules):
        metrics = metrics_of(run)
        unit, each = _for_each(metrics)
        rows.append(
            (
                name,
                hardware(run),
                energy_line(run),
                duration_text(run.account.total.seconds),
                f"{metrics['power_w'].value:.0f} W" if "power_w" in metrics else "",
                f"{run.latest.step}",
                "" if each is None else f"{unit} {energy_text(each.value, each.value - each.low)}",
                energy_text(unproductive_joules(run)),
                saving_line(run) or "",
            )
        )
    return _COLUMNS, rows


def activities_line(run: RunRecord) -> str:
    """Return the energy of each activity: "steps 1.2 MJ, idle 30 kJ"."""
    return ", ".join(f"{each.words} {energy_text(tally.measured_joules)}" for each, tally in activities_in_order(run))
