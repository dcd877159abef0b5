"""The page on one or more runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from zeus_core.report.many_runs import are_many, overview, side_by_side
from zeus_core.report.page import Html, card, fill, page, section_html
from zeus_core.report.run_lines import (
    Runs,
    energy_line,
    hardware,
    moment,
    quantity_text,
    steps_text,
    unrecorded_line,
)
from zeus_core.report.run_metrics import metrics_of
from zeus_core.report.run_pictures import activity_bars, loss_picture, power_picture, search_picture
from zeus_core.report.run_sections import Section, sections_of
from zeus_core.search.comparison import percentage
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import duration_text

_CARDS = (("mean power", "power_w"), ("CO2 equivalent", "co2_eq_g"), ("cost", "cost"))
_SAVED = "saved by the chosen setting"


def run_page(
    runs: Runs,
    notes: Sequence[tuple[str, bool]] = (),
    further: Mapping[str, Sequence[tuple[Section, str]]] = MappingProxyType({}),
) -> str:
    """Return the page; of many runs, it is a table.

    Args:
        runs: The runs with their names; at least one.
        notes: Sentences to show first, such as what a condition found, and whether they are bad news.
        further: Further sections of runs, each with its picture, by the name of the run.
    """
    title = f"Energy of {runs[0][0] if len(runs) == 1 else f'{len(runs)} runs'}"
    body = [fill("<h1>$title</h1>", title=title)]
    for text, is_bad in notes:
        body.append(fill('<p class="mark $kind">$text</p>', kind="bad" if is_bad else "good", text=text))
    if are_many(runs):
        return page(title, "".join([*body, section_html(overview(runs))]))
    if len(runs) > 1:
        body.append(section_html(side_by_side(runs), activity_bars(runs)))
    for name, run in runs:
        body.append(fill("<h2>$name</h2>", name=name) if len(runs) > 1 else Html())
        body.append(_run(run, further.get(name, ())))
    return page(title, "".join(body))


def _run(run: RunRecord, further: Sequence[tuple[Section, str]]) -> Html:
    record = run.latest.search_record()
    search = None if record is None else record.result
    pictures = {
        "activities": activity_bars([("", run)]),
        "power": power_picture(run, () if record is None else record.changes),
        "losses": loss_picture(run),
        "search": "" if search is None else search_picture(search),
    }
    sections = [section_html(section, pictures.get(section.name, "")) for section in sections_of(run)]
    sections[2:2] = [section_html(section, picture) for section, picture in further]
    return fill(
        '<p class="soft">$hardware; $steps in $time; began $began</p><div class="cards">$cards</div>$sections',
        hardware=hardware(run),
        steps=steps_text(run),
        time=duration_text(run.account.total.seconds),
        began=moment(run.parts[0].begun_at_seconds),
        cards=_cards(run),
        sections=sections,
    )


def _cards(run: RunRecord) -> list[Html]:
    metrics = metrics_of(run)
    per = next((name for name in ("energy_per_token_j", "energy_per_sample_j") if name in metrics), "energy_per_step_j")
    numbers = ((_SAVED, "saving_fraction"), (f"per {per.split('_')[2]}", per), *_CARDS)
    cards = [card(label, quantity_text(name, metrics[name], run)) for label, name in numbers if name in metrics]
    cards.insert("saving_fraction" in metrics, card("energy of all GPUs", energy_line(run), unrecorded_line(run)))
    record = run.latest.search_record()
    comparison = None if record is None or record.result is None else record.result.comparison
    if comparison is not None and math.isfinite(comparison.slowdown_uncertainty):
        if "saving_fraction" not in metrics:
            cards.append(card(_SAVED, "not certain"))
        longer = percentage(comparison.slowdown_factor - 1, comparison.slowdown_uncertainty, sign="+")
        cards.append(card("longer steps at it", longer))
    return cards
