"""Several runs in one report: side by side, or, of many, a table with a row for each. Pure."""

from __future__ import annotations

from zeus_core.events import Activity
from zeus_core.report.run_lines import Runs, energy_line, hardware, quantity_text, saving_line
from zeus_core.report.run_metrics import RUN_METRICS, metrics_of
from zeus_core.report.run_sections import Section
from zeus_core.training.record.loss_curve import energy_to, equal_loss
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import duration_text, energy_text, number_text

_MOST_IN_FULL = 12  # columns side by side, and pages: more are not read


def are_many(runs: Runs) -> bool:
    """Whether there are too many to show each in full."""
    return len(runs) > _MOST_IN_FULL


def unproductive_joules(run: RunRecord) -> float:
    """Return the energy between steps, idle, and of steps that were done again, if it was measured."""
    activities = run.account.activities
    idle = [activities[each] for each in (Activity.IDLE, Activity.BETWEEN_STEPS) if each in activities]
    return sum(tally.measured_joules for tally in (*idle, run.account.redone))


def overview(runs: Runs) -> Section:
    """Return a table with a row for each run: the one with the most energy first."""
    rows: list[tuple[str, ...]] = []
    for name, run in sorted(runs, key=lambda named: -named[1].account.total.measured_joules):
        metrics, watts = metrics_of(run), run.account.total.power_watts
        unit = next((unit for unit in ("token", "sample", "step") if f"energy_per_{unit}_j" in metrics), "")
        each = metrics.get(f"energy_per_{unit}_j")
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
    text = "A report on one to twelve of them shows each in full."
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
