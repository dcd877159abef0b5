"""The page on a catalogue, for those who pay: one HTML file that needs nothing else. Its size is bounded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from zeus_core.report.page import card, page, section_html
from zeus_core.report.run_sections import Section
from zeus_core.runs._counting import (
    Counted,
    Gain,
    between_runs_milliseconds,
    charge,
    codes,
    counted,
    gains,
    in_month,
    month_ends,
    numbers,
    sums,
)
from zeus_core.runs._run_rows import LOW_POWER_FRACTION
from zeus_core.runs._sums_shown import (
    COLUMNS,
    GAIN_COLUMNS,
    NO_NAME,
    cells,
    charged_at,
    gain_cells,
    grouped_sums,
    hours,
    kwh,
    kwh_text,
    number,
)

if TYPE_CHECKING:
    import pyarrow

    from zeus_core.electricity import Electricity

_MOST_ROWS, _MOST_USERS, _MOST_GAINS, _MOST_MONTHS = 10, 8, 10, 12  # two pages of paper
_LEFT_OUT = ("kWh", "Wh/Mtoken", "idle kWh")  # of the tables: they are in the file of numbers
_NOT_ADDED = ("cost",)
_STATES = {
    "ended": "completed",
    "failed": "failed, by an error",
    "stopped": "stopped, by a signal",
    "interrupted": "interrupted by a kill",
    "running": "not ended: killed, or it runs still",
}
_STYLE = """
.cards { grid-template-columns: repeat(auto-fit, minmax(12.5rem, 1fr)); } .card b { white-space: normal; }
table { font-size: .84rem; } td:first-child { padding-right: .4rem; }
td + td, th + th { text-align: right; white-space: pre; padding: .3rem 0 .3rem .7rem; } #gains td + td, #gains th + th,
#missing td { text-align: left; } .bar { fill: var(--accent); } .bar.chosen { fill: var(--chosen); }
.whisker { stroke: var(--ink); } .two { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr));
  gap: 1rem; } .two h4 { margin: 0; font-size: .9rem; font-weight: 400; color: var(--soft); }
#missing ul { margin: 0; padding-left: 1.1rem; } #trend svg text { font-size: 11px; }
@media print { html { font-size: 9px; } body { font-size: 9px; line-height: 1.35; } main { max-width: none; }
  section { padding: 5px 8px; margin: 5px 0; } .cards { gap: 4px; margin: 5px 0;
  grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); } .card { padding: 4px 6px; }
  svg { max-height: 105px; }
  th, td, td + td, th + th { padding-top: 1px; padding-bottom: 1px; } }
"""


@dataclass(frozen=True)
class MonthSums:
    """All sums of the page, which are those of the file beside it as well.

    Attributes:
        whole: The sum of all.
        tables: The sums of each grouping ("tag:team", "user", "state", "day"), by group.
        months: The sums of up to twelve months, that of the page last.
        gains: The runs that would gain most.
        between_milliseconds: The time that GPUs had no run, each between its first and its last run.
        gpus: The number of GPUs.
        zone: The time zone of days and months.
        electricity: All energy is charged at it; None for the charges that runs have recorded.
    """

    whole: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Mapping[str, Any]]]
    months: Mapping[str, Mapping[str, int]]
    gains: Sequence[Gain]
    between_milliseconds: int
    gpus: int
    zone: tzinfo
    electricity: Electricity | None


def month_sums(
    rows: pyarrow.Table,
    month: str | None,
    by: str,
    zone: tzinfo = UTC,
    electricity: Electricity | None = None,
) -> MonthSums:
    """Add up what the page shows.

    Args:
        rows: The rows of the catalogue.
        month: The month, such as "2026-10"; all if None.
        by: The grouping of its first table.
        zone: The time zone of days and months.
        electricity: All energy is charged at it; None for the charges that runs have recorded.

    Raises:
        UsageError: Nothing began in the month, or it is none.
    """
    known = counted(rows, zone)
    rows = rows if electricity is None else charge(rows, known, electricity)
    kept = None if month is None else in_month(rows, month, zone)
    groupings = dict.fromkeys((by, "user", "state", "day"))
    tables = {name: grouped_sums(rows, known, name, kept) for name in groupings}
    whole = grouped_sums(rows, known, None, kept).get("all") or {}
    energies = ("millijoules", "off_millijoules", "more_millijoules", "unbounded", "lost_gpu_milliseconds")
    months = {name: each for name, each in sums(rows, known, "month", None, energies).items() if name <= (month or "9")}
    ends = month_ends(month, zone) if month is not None else _ends(rows, known)
    return MonthSums(
        whole,
        tables,
        dict(list(months.items())[-_MOST_MONTHS:]),
        gains(rows, known, kept, _MOST_GAINS),
        between_runs_milliseconds(rows, known, *ends) if whole else 0,
        _device_count(rows, known, kept),
        zone,
        electricity,
    )


def _ends(rows: pyarrow.Table, known: Counted) -> tuple[int, int]:
    begin, end = (numbers(rows, name)[known.latest] for name in ("begin_ms", "end_ms"))
    return (int(begin.min()), int(end.max())) if len(begin) else (0, 0)


def _device_count(rows: pyarrow.Table, known: Counted, kept: Any) -> int:
    of_devices = known.latest & ~known.is_run & (True if kept is None else kept)
    return len(np.unique(codes(rows, "device")[0][of_devices]))


def month_page(found: MonthSums, title: str, by: str, left_out: int) -> str:
    """Return the page.

    Args:
        found: The sums.
        title: The month, or what else they are of.
        by: The grouping of its first table.
        left_out: The number of files of the catalogue that could not be used.
    """
    whole, word = found.whole, by.removeprefix("tag:")
    users = len(found.tables["user"])
    made = datetime.now(UTC).strftime("%Y-%m-%d")
    head = f"{whole['runs']:,} runs of {users} users on {found.gpus:,} GPUs; made on {made}"
    body = [
        f'<h1>Energy of GPUs, {escape(title)}</h1><p class="soft">{head}</p>{_cards(found)}',
        f'<section id="trend"><h3>Trend, in kWh</h3><div class="two">{_trend(found)}</div></section>',
        section_html(_table(f"By {word}", by, found.tables[by], whole, _MOST_ROWS), ""),
        section_html(_table("By user", "user", found.tables["user"], whole, _MOST_ROWS), "") if by != "user" else "",
        section_html(_outcomes(found), ""),
        section_html(_gains(found), ""),
        section_html(_idle(found), ""),
        '<section id="missing"><h3>What is not measured</h3><ul>'
        f"{''.join(f'<li>{escape(text)}</li>' for text in _missing(found, left_out))}</ul></section>",
    ]
    return page(f"Energy of GPUs, {title}", "".join(body), _STYLE)


def _cards(found: MonthSums) -> str:
    whole = found.whole
    rows = dict(zip(COLUMNS, cells("", whole)[1:], strict=True))
    months = list(found.months.values())
    against = ""
    if len(months) > 1 and months[-2]["millijoules"] > 0:
        change = months[-1]["millijoules"] / months[-2]["millijoules"] - 1
        against = f"{list(found.months)[-1]}: {change:+.0%} against the month before"
    shown = [
        card("energy of all GPUs", f"{rows['kWh']} kWh", against),
        card("GPU hours", rows["GPU hours"], f"GPUs had no run for {number(found.between_milliseconds / 3.6e6)} more"),
        *([card("CO2 equivalent", f"{rows['kgCO2e']} kg")] if rows["kgCO2e"] else []),
        *(card("cost", text) for text in rows["cost"].split(", ") if text),
        card(
            "saved by chosen settings",
            f"{rows['saved kWh']} kWh" if rows["saved kWh"] else "no saving is certain",
        ),
        card("runs under control", rows["controlled"], "with a setting searched or fixed"),
    ]
    return f'<div class="cards">{"".join(shown)}</div>'


def _trend(found: MonthSums) -> str:
    days = [(name[8:], kwh(each["millijoules"]), _off(each)) for name, each in found.tables["day"].items()]
    months = [(name[2:], kwh(each["millijoules"]), _off(each)) for name, each in found.months.items()]
    first, last = (list(found.tables["day"])[at] for at in (0, -1))
    days_title = f"days, {first} to {last}" if len(days) <= 31 else f"the latest 31 days, until {last}"
    charts = [(days_title, _bars(days[-31:], "")), ("months", _bars(months, "chosen"))]
    return "".join(f"<div><h4>{title}</h4>{chart}</div>" for title, chart in charts)


def _off(amounts: Mapping[str, int]) -> tuple[float, float]:
    """Return how far a sum can be off, downwards and upwards; upwards not, where nobody knows."""
    low = kwh(amounts["off_millijoules"])
    is_unknown = amounts["unbounded"] or amounts["lost_gpu_milliseconds"]
    return low, 0.0 if is_unknown else low + kwh(amounts["more_millijoules"])


def _bars(bars: Sequence[tuple[str, float, tuple[float, float]]], last: str) -> str:
    """Draw bars with their intervals. `last` is the class of the last one, which is what the page is of."""
    most = max((value + more for _, value, (_, more) in bars), default=0.0) or 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    top = next(unit * step for step in (1, 2, 3, 4, 6, 8, 10) if unit * step >= most)
    ticks = {share: number(top * share) for share in (0.0, 0.5, 1.0)}
    width, height, left, bottom = 360, 150, 10 + 8 * max(map(len, ticks.values())), 18
    room, scale = (width - left) / max(len(bars), 7), (height - bottom - 14) / top
    drawn = [
        f'<path class="axis" d="M{left},{y:.1f}H{width}"/><text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">'
        f"{tick}</text>"
        for share, tick in ticks.items()
        for y in (height - bottom - scale * top * share,)
    ]
    every = -(-len(bars) * 34 // (width - left))  # of the labels, which are up to 34 wide
    for place, (label, value, (less, more)) in enumerate(bars):
        x, y = left + room * place, height - bottom - scale * value
        kind = f" {last}" if place == len(bars) - 1 else ""
        text = f"<title>{escape(label)}: {number(value)} kWh</title>"
        size = f'width="{0.72 * room:.1f}" height="{scale * value:.1f}"'
        middle = x + 0.5 * room
        drawn.append(f'<rect class="bar{kind}" x="{x + 0.14 * room:.1f}" y="{y:.1f}" {size}>{text}</rect>')
        drawn.append(f'<path class="whisker" d="M{middle:.1f},{y - scale * more:.1f}V{y + scale * less:.1f}"/>')
        if place % every == 0:
            drawn.append(f'<text x="{middle:.1f}" y="{height - 3}" text-anchor="middle">{escape(label)}</text>')
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Energy over time">{"".join(drawn)}</svg>'


def _table(
    title: str, by: str, groups: Mapping[str, Mapping[str, Any]], whole: Mapping[str, Any], most: int
) -> Section:
    """Return the table of the groups with the most energy, the others in one row."""
    order = sorted(groups, key=lambda name: -groups[name]["millijoules"])
    shown = [(name or NO_NAME, groups[name]) for name in order[:most]]
    if order[most:]:
        shown.append((f"{len(order) - most} more", _together([groups[name] for name in order[most:]])))
    places = [0, *(number + 1 for number, name in enumerate(COLUMNS) if name not in _LEFT_OUT)]
    cost, rows = COLUMNS.index("cost") + 1, []
    for name, amounts in [*shown, ("total", whole)]:
        row = cells(name, amounts)
        others = (row[place].replace(", ", "\n") if place == cost else row[place] for place in places[1:])
        rows.append((row[0], kwh_text(amounts), _share(amounts, whole), *others))
    columns = (by.removeprefix("tag:"), "kWh", "share", *(COLUMNS[place - 1] for place in places[1:]))
    used = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    columns, *rows = (tuple(row[place] for place in used) for row in (columns, *rows))
    return Section(f"by-{title.rpartition(' ')[2]}", title, "", columns, rows)


def _together(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {name: sum(each[name] for each in groups) for name in groups[0] if name not in _NOT_ADDED}
    units = dict.fromkeys(unit for each in groups for unit in each["cost"])
    total["cost"] = {
        unit: [sum(each["cost"].get(unit, (0, 0))[place] for each in groups) for place in (0, 1)] for unit in units
    }
    return total


def _share(amounts: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    return f"{amounts['millijoules'] / whole['millijoules']:.0%}" if whole["millijoules"] else ""


def _outcomes(found: MonthSums) -> Section:
    whole = found.whole
    rows = [
        (_STATES.get(name, name), kwh_text(each), _share(each, whole), f"{each['runs']:,}", hours(each, "gpu"))
        for name, each in found.tables["state"].items()
    ]
    redone = {"millijoules": whole["redone_millijoules"]}
    rows.append(("steps done twice, within these", number(kwh(redone["millijoules"])), _share(redone, whole), "", ""))
    columns = ("", "kWh", "share", "runs", "GPU hours")
    return Section("outcomes", "By outcome", "All of them are in all sums.", columns, rows)


def _gains(found: MonthSums) -> Section:
    rows = [gain_cells(each, found.zone) for each in found.gains]
    title = f"The {len(rows)} runs that would gain most" if rows else "No run is known to gain"
    text = "" if rows else "None was idle, did steps twice, or ran on GPUs whose settings have saved energy elsewhere."
    return Section("gains", title, text, GAIN_COLUMNS, rows)


def _idle(found: MonthSums) -> Section:
    whole, users = found.whole, found.tables["user"]
    order = sorted(users, key=lambda name: -users[name]["low_gpu_milliseconds"])[:_MOST_USERS]
    rows = [(name or NO_NAME, *_low(users[name])) for name in order if users[name]["low_gpu_milliseconds"] > 0]
    text = (
        f"GPU hours at less than {LOW_POWER_FRACTION:.0%} of the power limit, as a GPU that waits, among the "
        f"{hours(whole, 'seen')} of {hours(whole, 'gpu')} GPU hours whose power over time is recorded. GPUs had no run "
        f"for {number(found.between_milliseconds / 3.6e6)} hours more, each between its first and its last run."
    )
    return Section("idle", "GPUs that were idle", text, ("user", "low use, h", "share of hours", "kWh then"), rows)


def _low(amounts: Mapping[str, Any]) -> tuple[str, str, str]:
    share = amounts["low_gpu_milliseconds"] / amounts["seen_gpu_milliseconds"]
    return hours(amounts, "low"), f"{share:.0%}", number(kwh(amounts["low_millijoules"]))


def _missing(found: MonthSums, left_out: int) -> list[str]:
    whole = found.whole
    all_kwh = number(kwh(whole["millijoules"]))
    texts = []
    if whole["lost_gpu_milliseconds"]:
        texts.append(f"The energy of {hours(whole, 'lost')} GPU hours was lost.")
    if whole["unbounded"]:
        texts.append(f"Nobody knows what {whole['unbounded']:,} runs took after their last logs: they were killed.")
    if whole["more_millijoules"]:
        more = number(kwh(whole["more_millijoules"]))
        texts.append(f"Runs that were killed may have taken up to {more} kWh more.")
    if whole["overlapping_runs"]:
        shared = number(kwh(whole["shared_millijoules"]))
        texts.append(f"{whole['overlapping_runs']:,} runs overlap with others on a GPU: {shared} kWh count once alone.")
    texts += [] if found.electricity is None else [f"{charged_at(found.electricity)}."]
    for name, charged in (("Emissions", "charged_millijoules"), ("Costs", "priced_millijoules")):
        if whole[charged] < whole["millijoules"]:
            texts.append(f"{name} are of {number(kwh(whole[charged]))} of {all_kwh} kWh: the rest was not charged.")
    if left_out:
        texts.append(f"{left_out:,} files of the catalogue cannot be used, and are left out.")
    texts.append(
        "GPUs between their runs, and runs that were never added: no run file has their energy; an exporter that "
        "runs all day has it. CPUs, memory, network and cooling are not in these numbers."
    )
    return texts
