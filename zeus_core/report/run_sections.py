"""The tables of a report on a run: the same in every format. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from zeus_core.optimizer.search_result import CHOSEN, SearchRecord, SearchResult
from zeus_core.report.run_lines import (
    activities_in_order,
    energy_and_power,
    hardware,
    moment,
    quantity_text,
    remarks,
    saving_line,
)
from zeus_core.report.run_metrics import metrics_of
from zeus_core.search import Trial
from zeus_core.search.comparison import energy_error_fraction
from zeus_core.settings.entry import setting_text
from zeus_core.training.record.run_records import REMARKS, RunRecord
from zeus_core.units import amount_text, duration_text, energy_text, number_text

DATA_CENTRE = "cooling and losses of the data centre"
_MAX_ROWS = 40  # of a table: a page on 512 GPUs is to be read too
_PLAIN_MEANS = (
    " The table has plain means of the steps at each setting. Saving and slowdown are of all steps at the settings "
    "chosen, corrected for drift."
)


class Section(NamedTuple):
    """A part of a report.

    Attributes:
        name: Its name, for pictures and links.
        title: Its heading.
        text: A sentence or two; empty for none.
        columns: The headings of its table.
        rows: Its cells.
    """

    name: str
    title: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()


def sections_of(run: RunRecord) -> list[Section]:
    """Return the sections of the report on a run; those without content are left out."""
    record = run.latest.search_record()
    search = None if record is None else record.result
    sections = [
        _activities(run),
        _devices(run),
        Section("power", "Power over time", _power_text(run)),
        _losses(run),
        *([] if search is None else [_search(run, search)]),
        *([] if record is None or not record.changes else [_changes(record)]),
        _results(run, search),
        _electricity(run),
        Section("gaps", "What was not measured, and why", "", ("what", "why"), gaps(run)),
        _parts(run),
        _origin(run),
    ]
    return [section for section in sections if section.text or section.rows]


def _activities(run: RunRecord) -> Section:
    account, total = run.account, run.account.total
    rows: list[tuple[str, ...]] = []
    for activity, tally in activities_in_order(run):
        energy, power = energy_and_power(tally)
        if (tally.measured_joules, tally.lost_seconds) == (total.measured_joules, total.lost_seconds):
            energy, _ = energy_and_power(total)  # one energy, so one interval
        share = f"{tally.measured_joules / total.measured_joules:.1%}" if total.measured_joules > 0 else ""
        count, joules = account.visits.get(activity, 0), tally.energy_joules
        times = (f"{count}" if count else "", "" if joules is None or not count else energy_text(joules / count))
        method = tally.measured.method
        rows.append((activity.words, duration_text(tally.seconds), energy, power, share, method, *times))
    if account.redone.seconds > 0:
        cells = (duration_text(account.redone.seconds), *energy_and_power(account.redone))
        rows.append(("of it done twice", *cells, "", "", "", ""))
    rows.append(
        ("total", duration_text(total.seconds), *energy_and_power(total), "100%", total.measured.method, "", "")
    )
    columns = ("activity", "time", "energy", "mean power", "share", "how", "times begun", "each")
    shown = len(columns) if account.visits else -2  # the energy of a command is not divided by activity
    return Section("activities", "Where the energy went", remarks(run), columns[:shown], [row[:shown] for row in rows])


def _devices(run: RunRecord) -> Section:
    rows = []
    for number, rank in enumerate(run.latest.ranks):
        for device in rank.devices:
            place = (f"{number}", f"GPU {device.index}")
            if rank.count > 1:
                place = (f"{rank.count} ranks", f"{device.count} GPUs")
            cells = ("not reported yet", "") if device.energy is None else energy_and_power(device.energy)
            limit = "" if device.limit_watts is None else f"{device.limit_watts:.0f} W"
            rows.append((*place, device.name, *cells, limit, rank.host, device.uuid))
    texts = []
    if len(run.parts) > 1:
        texts.append(f"The latest of {len(run.parts)} parts of the run, from step {run.latest.begin_step} on.")
    if len(rows) > _MAX_ROWS:
        what = "GPUs" if all(rank.count == 1 for rank in run.latest.ranks) else "kinds of GPUs of a machine"
        texts.append(f"The first {_MAX_ROWS} of {len(rows)} {what}; the JSON format has all of them.")
    columns = ("rank", "GPU", "name", "energy", "mean power", "first limit", "machine", "UUID")
    return Section("devices", "Ranks and devices", " ".join(texts), columns, rows[:_MAX_ROWS])


def _power_text(run: RunRecord) -> str:
    latest = run.latest
    count, of = sum(bool(latest.power or device.power) for device in latest.devices), len(latest.devices)
    if count == 0:
        return ""
    which = "all GPUs together" if count == of else f"{count} of {of} GPUs, those that had reported it"
    text = f"Mean power between two points, of {which}. Dashed lines are changes of the setting."
    text += " Time whose energy was lost is left out." if run.account.total.lost_seconds > 0 else ""
    return text if len(run.parts) == 1 else f"{text} Red lines are interruptions, whose time is left out."


def _losses(run: RunRecord) -> Section:
    """Return the losses with the energy that the run had taken by then."""
    rows = []
    for name, points in run.losses.items():
        best = min(points, key=lambda point: point.value)
        first, lowest, latest = (number_text(point.value) for point in (points[0], best, points[-1]))
        rows.append((name, first, lowest, energy_text(best.joules), latest))
    if not rows:
        return Section("losses", "")
    text = "This is the energy of all GPUs from the first step of the run, as known at the latest log."
    columns = ("", "first", "lowest", "energy until then", "latest")
    return Section("losses", "Losses beside the energy", text, columns, rows)


def _search(run: RunRecord, search: SearchResult) -> Section:
    before = search.trials.get(search.original) if search.is_comparable else None
    rows = []
    for trial, mark in search.points():
        change = "" if before is None else f"{trial.joules_per_step / before.joules_per_step - 1:+.1%}"
        slower = "" if before is None else f"{trial.seconds_per_step / before.seconds_per_step - 1:+.1%}"
        cells = (_step_energy(trial), change, duration_text(trial.seconds_per_step), slower, f"{trial.steps}", mark)
        rows.append((setting_text(trial.setting, search.unit), *cells))
    if search.chosen is not None and not any(mark == CHOSEN for _, mark in search.points()):
        rows.append((setting_text(search.chosen, search.unit), "not measured", "", "", "", "0", CHOSEN))
    saving = saving_line(run)
    text = f"{search.name}: {search.rows()[search.name]}." + ("" if saving is None else f" Saving: {saving}.")
    text += f" Slowdown: {search.slowdown_text}." if search.slowdown_text else ""
    is_corrected = search.comparison is not None and search.comparison.slowdown is not None
    text += _PLAIN_MEANS if is_corrected and before is not None else ""
    columns = ("setting", "energy of a step (95 %)", "energy", "time of a step", "time", "steps measured", "")
    return Section("search", "The search and its choice", text, columns, rows)


def _step_energy(trial: Trial) -> str:
    error, joules = energy_error_fraction(trial), trial.joules_per_step
    return energy_text(joules, joules * error) if math.isfinite(error) else f"{energy_text(joules)}, too few steps"


def _changes(record: SearchRecord) -> Section:
    changes = record.changes
    rows = []
    for change in changes[-_MAX_ROWS:]:
        setting = "the original" if change.setting is None else setting_text(change.setting, change.unit)
        rows.append((moment(change.at_seconds), setting, change.reason))
    text = "The latest setting was still in force."
    if record.result is not None and record.result.unrestored:
        text = "At the end, the original state was not restored on every GPU."
    elif changes[-1].setting is None:
        text = "At the end, the original state was restored."
    if len(changes) > _MAX_ROWS:
        text += f" The latest {_MAX_ROWS} of {len(changes)} changes."
    return Section("changes", "Settings changed and restored", text, ("when", "setting", "why"), rows)


def _results(run: RunRecord, search: SearchResult | None) -> Section:
    """Return the results that no other section shows."""
    shown = {REMARKS} if search is None else {REMARKS, search.name, "saving", "slowdown"}
    rows = [(label, text) for label, text in run.latest.results.items() if label not in shown]
    return Section("results", "Result of the optimizer", "", ("", ""), rows)


def _electricity(run: RunRecord) -> Section:
    title = "Emissions and cost"
    if run.electricity is None:
        return Section(
            "electricity",
            title,
            "Not known: no carbon intensity and no price were given, by --intensity and --price or electricity=.",
        )
    metrics, rows = metrics_of(run), []
    for signal in run.electricity.signals:
        unit, name = signal.unit.partition("/")[0], "co2_eq_g" if signal.basis else "cost"
        charge, amount, stale = run.account.charges.get(unit), "not known", ""
        if charge is not None:
            stale = f"{charge.stale_fraction:.0%}"
            amount = f"at least {amount_text(charge.amount, charge.uncertainty, unit)}"
            amount = quantity_text(name, metrics[name], run) if name in metrics else amount
        what = "CO2 equivalent" if signal.basis else "cost"
        rows.append((what, amount, signal.source, signal.basis or "price", signal.unit, stale))
    pue, place = run.electricity.pue, run.electricity.location
    text = (
        "The data centre's share is not in it (PUE 1)." if pue == 1 else f"With the data centre's share, PUE {pue:g}."
    )
    columns = ("what", "amount", "source", "basis", "unit", "at a mean value")
    return Section("electricity", title, f"{text} Place: {place}." if place else text, columns, rows)


def gaps(run: RunRecord) -> list[tuple[str, str]]:
    """Return what was not measured, and why."""
    account, ranks = run.account, run.latest.ranks
    rows = []
    if account.total.lost_seconds > 0:
        lost = f"GPUs, for {duration_text(account.total.lost_seconds)}"
        rows.append((lost, "neither their counters nor their power could be read, and no model bridges it"))
    if account.interruptions > 0:
        joules = account.unrecorded_joules
        most = "nobody knows how much" if joules is None else f"at most {energy_text(joules)}"
        why = f"killed, or ended before all ranks had reported their last energy: {most}"
        rows.append((f"the end of {account.interruptions} parts", why))
    unreported = [str(number) for number, rank in enumerate(ranks) if any(one.energy is None for one in rank.devices)]
    if unreported:
        rows.append((f"single GPUs of rank {_some(unreported)}", "reported at the end of the run only"))
    without = [str(number) for number, rank in enumerate(ranks) if not rank.devices]
    if without:
        rows.append((f"GPUs of rank {_some(without)}", "it has none, or a lower rank counts them"))
    if account.host.seconds == 0:
        is_command = not account.activities
        where = "" if is_command else "electricity= is given and "
        why = f"measured where {where}this user may read their counters"
        rows.append(("CPUs and memory", why))
    elif account.host.lost_seconds > 0:
        rows.append((f"CPUs, for {duration_text(account.host.lost_seconds)}", "their counters could not be read"))
    rows.append(("fans, power supplies, network, storage", "no counter of this machine separates them"))
    if run.electricity is None or run.electricity.pue == 1:
        rows.append((DATA_CENTRE, "no PUE was given"))
    if any(device.is_simulated for device in run.latest.devices):
        rows.append(("anything real", "these GPUs are simulated: the numbers come from a model"))
    return rows


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _parts(run: RunRecord) -> Section:
    rows = []
    for part in run.parts[-_MAX_ROWS:]:
        span = f"{moment(part.begun_at_seconds)} to {moment(part.until_seconds)}"
        steps, ranks = f"{part.begin_step} to {part.step}", f"{sum(rank.count for rank in part.ranks)}"
        rows.append((span, steps, part.state, ranks))
    text = "" if len(run.parts) == 1 else "A step that lies in two parts was done twice."
    return Section("parts", "When", text, ("time", "steps", "state", "ranks"), rows)


def _origin(run: RunRecord) -> Section:
    latest = run.latest
    hosts = list(dict.fromkeys(rank.host for rank in latest.ranks))
    drivers = sorted({device.driver for device in latest.devices if device.driver is not None})
    rows = [("GPUs", hardware(run)), ("machines", _some(hosts)), ("driver", ", ".join(drivers) or "not known")]
    rows += [(name, version) for name, version in latest.versions.items()]
    rows += [(name.replace("_", " "), f"{value}") for name, value in latest.work.items()]
    rows.append(("run", run.run))
    return Section("origin", "Hardware and versions", "", ("", ""), rows)
