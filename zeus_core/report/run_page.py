"""A page on one or more runs: one HTML file that needs nothing else, in light and dark, for screens and for paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType

from zeus_core.events import Activity
from zeus_core.report.many_runs import activities_line, are_many, runs_in_full, table_of
from zeus_core.report.run_metrics import RUN_METRICS, Quantity, metrics_of, unit_of
from zeus_core.report.run_pictures import activity_bars, loss_picture, power_picture, search_picture
from zeus_core.report.run_sections import (
    Section,
    energy_line,
    hardware,
    moment,
    sections_of,
    steps_text,
    unrecorded_line,
)
from zeus_core.search.comparison import percentage
from zeus_core.training.record.loss_curve import energy_to, equal_loss
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import amount_text, duration_text, energy_text, number_text

STYLE = """
:root { color-scheme: light dark; --ink: #16202c; --soft: #5b6876; --paper: #f6f7f9; --card: #ffffff; --line: #dfe4ea;
  --accent: #1769aa; --chosen: #c2410c; --steps: #1f77b4; --generation: #d97706; --reference: #7c3aed;
  --waiting: #b8a27a; --reward: #be185d; --prediction: #0e7490; --other: #65a30d;
  --evaluation: #0f8f6f; --checkpoint: #c0397b; --between_steps: #8a5a2b; --idle: #7d8b99; --good: #0f7a55;
  --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf1; --soft: #9aa7b5; --paper: #10151b; --card: #171e26;
  --line: #2b3540; --accent: #6db3f2; --chosen: #ffa657; --steps: #58a6e8; --generation: #f0b04a; --reference: #b197fc;
  --waiting: #8f7f5e; --reward: #f472b6; --prediction: #67c5d8; --other: #a3d34e;
  --evaluation: #46c9a3; --checkpoint: #f08bbd; --between_steps: #c9955c; --idle: #7c8a97; --good: #5fd0a3;
  --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink); background: var(--paper);
  margin: 0; padding: 2.2rem 1rem 4rem; }
main { max-width: 62rem; margin: 0 auto; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 2.6rem 0 .2rem; overflow-wrap: anywhere; }
h3 { font-size: 1.02rem; margin: 0 0 .5rem; }
p { margin: .2rem 0 .8rem; } .soft, footer { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .8rem; margin: 1.2rem 0; }
.card, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.card { padding: .8rem 1rem; }
.card b { display: block; font-size: 1.1rem; line-height: 1.4; white-space: nowrap; }
.card span { color: var(--soft); font-size: .85rem; }
section { padding: 1.1rem 1.25rem; margin: 1rem 0; } summary { cursor: pointer; } summary h2 { display: inline; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 600; } th, td { padding: .3rem .9rem .3rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: break-word; }
tr:last-child td { border-bottom: 0; } td:first-child { white-space: nowrap; padding-right: 1.4rem; }
.grid td:nth-child(-n+5) { white-space: nowrap; } tr.total td { font-weight: 600; }
svg { width: 100%; height: auto; display: block; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.axis { stroke: var(--line); } .area { fill: var(--accent); opacity: .16; } .line { fill: none; stroke: var(--accent);
  stroke-width: 1.6; stroke-linejoin: round; } .thin { fill: none; stroke: var(--line); stroke-width: 1.5; }
.pale { fill: none; stroke: var(--idle); stroke-width: 1.4; }
path.trial { stroke: var(--accent); stroke-width: 2; } circle.trial { fill: var(--accent); }
path.chosen { stroke: var(--chosen); stroke-width: 2; } circle.chosen { fill: var(--chosen); }
.mark-change { stroke: var(--chosen); stroke-dasharray: 4 4; } .mark-part { stroke: var(--bad); stroke-width: 2; }
.legend { margin: .4rem 0 .8rem; } .key { margin-right: 1.1rem; white-space: nowrap; font-size: .88rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .4rem; }
.bad { color: var(--bad); } .good { color: var(--good); } .mark { border-left: 4px solid;
  padding-left: .8rem; } footer { margin-top: 2.5rem; font-size: .85rem; }
@media screen and (max-width: 40rem) { body { padding: 1rem .4rem 2rem; } section { padding: .8rem; overflow-x: auto; }
  .cards { grid-template-columns: 1fr 1fr; gap: .4rem; } .card { padding: .5rem .7rem; } .card b { font-size: 1rem; }
  svg text { font-size: 18px; } table { width: max-content; min-width: 100%; }
  th, td { padding: .35rem .5rem .35rem 0; font-size: .9rem; } td { max-width: 17rem; } }
@media print { :root { --ink: #000; --soft: #444; --paper: #fff; --card: #fff; --line: #bbb; } body { padding: 0;
  font-size: 11px; } section, .card { break-inside: avoid; } .wide { overflow: visible; } }
"""
_COLORS = "".join(
    f".fill-{name} {{ fill: var(--{name}); }} .back-{name} {{ background: var(--{name}); }}\n"
    for name in Activity.KINDS
)


def run_page(
    runs: Sequence[tuple[str, RunRecord]],
    notes: Sequence[tuple[str, bool]] = (),
    further: Mapping[str, Sequence[tuple[Section, str]]] = MappingProxyType({}),
) -> str:
    """Return the page. If there are many runs, some are shown in full, each below a line that opens it.

    Args:
        runs: The runs with their names; at least one.
        notes: Sentences to show first, such as what a condition found, and whether they are bad news.
        further: Further sections of runs, each with its picture, by the name of the run.
    """
    title = runs[0][0] if len(runs) == 1 else f"{len(runs)} runs"
    body = [f"<h1>Energy of {escape(title)}</h1>"]
    body += [f'<p class="mark {"bad" if is_bad else "good"}">{escape(text)}</p>' for text, is_bad in notes]
    in_full = runs_in_full(runs, notes)
    shown = [runs[number] for number in in_full]
    if are_many(runs):
        body.append(f"<section><h3>The runs that matter</h3>{activity_bars(shown)}</section>")
        for (name, run), reason in zip(shown, in_full.values(), strict=True):
            head = f'<summary><h2>{escape(name)}</h2> <span class="soft">{escape(reason)}</span></summary>'
            body.append(f"<details>{head}{_run(run, further.get(name, ()))}</details>")
        body.append(_overview(runs))
        shown = []
    elif len(runs) > 1:
        body.append(section_html(_comparison(runs), activity_bars(runs)))
    for name, run in shown:
        body.append(f"<h2>{escape(name)}</h2>" if len(runs) > 1 else "")
        body.append(_run(run, further.get(name, ())))
    return page(f"Energy of {title}", "".join(body), _COLORS)


def page(title: str, body: str, style: str) -> str:
    """Return a page.

    Args:
        title: Its title, as plain text.
        body: Its content, in HTML.
        style: Rules beside those of all pages.
    """
    footer = (
        "<footer>Measured by zeus-core. An energy is written with the half-width of the interval that holds the truth. "
        "“Not measured” is never 0.</footer>"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">\n'
        f"<style>{STYLE}{style}</style></head>\n<body><main>{body}{footer}</main></body></html>\n"
    )


def _run(run: RunRecord, further: Sequence[tuple[Section, str]]) -> str:
    record = run.latest.search_record()
    changes = () if record is None else record.changes
    search = None if record is None else record.result
    pictures = {
        "activities": activity_bars([("", run)]),
        "power": power_picture(run, changes),
        "losses": loss_picture(run),
        "search": "" if search is None else search_picture(search),
    }
    began = moment(run.parts[0].begun_at_seconds)
    spent = f"{steps_text(run)} in {duration_text(run.account.total.seconds)}"
    head = f'<p class="soft">{escape(hardware(run))}; {spent}; began {began}</p>{_cards(run)}'
    sections = [section_html(section, pictures.get(section.name, "")) for section in sections_of(run)]
    sections[2:2] = [section_html(section, picture) for section, picture in further]
    return head + "".join(sections)


def _cards(run: RunRecord) -> str:
    metrics = metrics_of(run)
    per = next((name for name in ("energy_per_token_j", "energy_per_sample_j") if name in metrics), "energy_per_step_j")
    shown = [
        (label, quantity_text(name, metrics[name], run))
        for label, name in (
            ("saved by the chosen setting", "saving_fraction"),
            (f"per {per.split('_')[2]}", per),
            ("mean power", "power_w"),
            ("CO2 equivalent", "co2_eq_g"),
            ("cost", "cost"),
        )
        if name in metrics
    ]
    cards = [card(label, text) for label, text in shown]
    cards.insert("saving_fraction" in metrics, card("energy of all GPUs", energy_line(run), unrecorded_line(run)))
    record = run.latest.search_record()
    comparison = None if record is None or record.result is None else record.result.comparison
    if comparison is not None and math.isfinite(comparison.slowdown_uncertainty):
        if "saving_fraction" not in metrics:
            cards.append(card("saved by the chosen setting", "not certain"))
        longer = percentage(comparison.slowdown_factor - 1, comparison.slowdown_uncertainty, sign="+")
        cards.append(card("longer steps at it", longer))
    return f'<div class="cards">{"".join(cards)}</div>'


def card(label: str, text: str, more: str = "") -> str:
    """Return a card: the number, its unit, and below them how far it can be off."""
    value, plus_minus, rest = text.partition(" ±")
    off, _, unit = rest.partition(" ")
    detail = f"±{off} {unit} {more}".strip() if plus_minus else more
    shown = f"{value} {unit}".strip()
    return f'<div class="card"><span>{escape(label)}</span><b>{escape(shown)}</b><span>{escape(detail)}</span></div>'


def section_html(section: Section, picture: str) -> str:
    """Return a section: its heading, its text, a picture in HTML, and its table."""
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    return f'<section id="{section.name}"><h3>{escape(section.title)}</h3>{text}{picture}{_table(section)}</section>'


def _table(section: Section) -> str:
    if not section.rows:
        return ""
    heads = "".join(f"<th>{escape(column)}</th>" for column in section.columns) if any(section.columns) else ""
    rows = "".join(
        f"<tr{' class=total' if row[0] == 'total' else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in section.rows
    )
    head = f"<thead><tr>{heads}</tr></thead>" if heads else ""
    kind = ' class="grid"' if len(section.columns) > 3 else ""
    return f'<div class="wide"><table{kind}>{head}<tbody>{rows}</tbody></table></div>'


def _overview(runs: Sequence[tuple[str, RunRecord]]) -> str:
    """Return a table with a row for each run, whose activities are shown where it is opened."""
    columns, rows = table_of(runs)
    known = dict(runs)
    heads = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = []
    for name, *cells in rows:
        more = f"<details><summary>{escape(name)}</summary>{escape(activities_line(known[name]))}</details>"
        lines.append(f"<tr><td>{more}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    text = "Open a run for its activities. Those above are shown in full, and any one by a report on it alone."
    return f'<section id="runs"><h3>All runs</h3><p>{text}</p><div class="wide">{table}</div></section>'


def comparison_rows(runs: Sequence[tuple[str, RunRecord]]) -> list[tuple[str, ...]]:
    """Return a row for each number that some of the runs have: its name, and its value in each run."""
    found: list[Mapping[str, Quantity]] = [metrics_of(run) for _, run in runs]
    rows = [("GPUs", *(hardware(run) for _, run in runs))]
    if (common := equal_loss([run.losses for _, run in runs])) is not None:
        name, loss = common  # the lowest that all of them have reached
        reached = [energy_to(run.losses[name], loss) for _, run in runs]
        texts = ["-" if point is None else f"{energy_text(point.joules)}, step {point.step}" for point in reached]
        rows.append((f"energy until {name} {number_text(loss)}", *texts))
    rows += [
        (
            name,
            *(
                quantity_text(name, known[name], run) if name in known else "-"
                for known, (_, run) in zip(found, runs, strict=True)
            ),
        )
        for name in dict.fromkeys([*RUN_METRICS, *(name for known in found for name in known)])
        if any(name in known for known in found)
    ]
    return rows


def _comparison(runs: Sequence[tuple[str, RunRecord]]) -> Section:
    columns = ("", *(name for name, _ in runs))
    return Section("comparison", "The runs side by side", "", columns, comparison_rows(runs))


def quantity_text(name: str, quantity: Quantity, run: RunRecord) -> str:
    """Format a number of a run with its uncertainty and unit."""
    unit = unit_of(name)
    off = quantity.value - quantity.low
    if quantity.high - quantity.value > 1.01 * off:  # what killed parts may have taken is one-sided
        most = energy_text(quantity.high) if quantity.high < math.inf else "nobody knows how much"
        if unit != "J":
            return f"at least {number_text(quantity.low)} {unit}"
        return f"{energy_text(quantity.low)} to {most}"
    if unit == "J":
        return energy_text(quantity.value, off)
    if unit == "s":
        return duration_text(quantity.value)
    if name == "saving_fraction":
        return f"{quantity.value:.1%} ±{100 * off:.1f}"
    if not unit:
        return f"{quantity.value:,.0f}"
    if name == "cost" and run.electricity is not None:
        unit = next(one.unit.partition("/")[0] for one in run.electricity.signals if one.basis is None)
    return amount_text(quantity.value, off, unit)
