"""Several runs in one report: side by side, or, of many, a table with a row for each and those that matter. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from zeus_core.events import Activity
from zeus_core.report.run_lines import Runs, activities_in_order, energy_line, hardware, quantity_text, saving_line
from zeus_core.report.run_metrics import RUN_METRICS, Quantity, metrics_of
from zeus_core.report.run_sections import Section
from zeus_core.training.record.loss_curve import energy_to, equal_loss
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import duration_text, energy_text, number_text

_MOST_IN_FULL = 12  # columns side by side, and pages: more are not read
_OF_EACH_KIND = 3


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
    failed = {number: any(text.startswith(f"{name}: ") for text in bad) for number, (name, _) in enumerate(runs)}
    found = defaultdict[int, list[str]](list)
    for number in _largest(energies):
        found[number].append(f"one of the largest energies, {energy_text(energies[number])}")
    for number in _largest(gains):
        gain = energy_text(gains[number])
        found[number].append(f"one of the largest possible gains, {gain} outside of steps or done twice")
    for number in _largest(failed):
        found[number].append("failed the condition")
    excess = _excess(runs)
    for number in _largest(excess):
        times = number_text(excess[number])
        found[number].append(f"{times} times the energy of the median run on such GPUs for the same work")
    return {number: "; ".join(found[number]) for number in sorted(found)}


def _largest(values: dict[int, float] | dict[int, bool]) -> list[int]:
    """Return the numbers of the runs with the largest values above 0."""
    return [number for number in sorted(values, key=lambda number: -values[number])[:_OF_EACH_KIND] if values[number]]


def unproductive_joules(run: RunRecord) -> float:
    """Return the energy between steps, idle, and of steps that were done again, if it was measured."""
    activities = run.account.activities
    idle = [activities[each] for each in (Activity.IDLE, Activity.BETWEEN_STEPS) if each in activities]
    return sum(tally.measured_joules for tally in (*idle, run.account.redone))


def _excess(runs: Runs) -> dict[int, float]:
    """Return by which factor runs take more for a token, sample or step than the median of those on the same GPUs."""
    groups = defaultdict[tuple[str, str], dict[int, float]](dict)
    for number, (_, run) in enumerate(runs):
        unit, quantity = _for_each(run)
        if quantity is not None:
            groups[hardware(run), unit][number] = quantity.value
    medians = {group: statistics.median(values.values()) for group, values in groups.items()}
    return {
        number: value / medians[group]
        for group, values in groups.items()
        for number, value in values.items()
        if value > medians[group] > 0
    }


def _for_each(run: RunRecord) -> tuple[str, Quantity | None]:
    metrics = metrics_of(run)
    unit = next((unit for unit in ("token", "sample", "step") if f"energy_per_{unit}_j" in metrics), "")
    return unit, metrics.get(f"energy_per_{unit}_j")


def overview(runs: Runs) -> Section:
    """Return a table with a row for each run: the one with the most energy first."""
    rows: list[tuple[str, ...]] = []
    for name, run in sorted(runs, key=lambda named: -named[1].account.total.measured_joules):
        unit, each = _for_each(run)
        watts = run.account.total.power_watts
        cells = (
            hardware(run),
            energy_line(run),
            duration_text(run.account.total.seconds),
            "" if watts is None else f"{watts:.0f} W",
            f"{run.latest.step}",
            "" if each is None else f"{unit} {energy_text(each.value, each.value - each.low)}",
            energy_text(unproductive_joules(run)),
            saving_line(run) or "",
        )
        rows.append((name, *cells))
    columns = ("run", "GPUs", "energy", "time", "mean power", "steps", "for each", "outside of steps, or done twice")
    text = "Those that matter are shown in full, and any other one by a report on it alone."
    return Section("runs", "All runs", text, (*columns, "saved"), rows)


def side_by_side(runs: Runs) -> Section:
    """Return a table with a row for each number that some of the runs have, and a column for each run."""
    rows = [("GPUs", *(hardware(run) for _, run in runs))]
    if (common := equal_loss([run.losses for _, run in runs])) is not None:
        name, loss = common  # the lowest that all of them have reached
        reached = [energy_to(run.losses[name], loss) for _, run in runs]
        texts = ["-" if point is None else f"{energy_text(point.joules)}, step {point.step}" for point in reached]
        rows.append((f"energy until {name} {number_text(loss)}", *texts))
    known = [{name: quantity_text(name, each, run) for name, each in metrics_of(run).items()} for _, run in runs]
    names = dict.fromkeys([*RUN_METRICS, *(name for own in known for name in own)])
    rows += [(name, *(own.get(name, "-") for own in known)) for name in names if any(name in own for own in known)]
    return Section("comparison", "The runs side by side", "", ("", *(name for name, _ in runs)), rows)


def activities_line(run: RunRecord) -> str:
    """Return the energy of each activity: "steps 1.2 MJ, idle 30 kJ"."""
    return ", ".join(f"{each.words} {energy_text(tally.measured_joules)}" for each, tally in activities_in_order(run))
