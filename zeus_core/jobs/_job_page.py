"""A page on a recurring job: one HTML file that needs nothing else, in light and dark."""

from __future__ import annotations

from html import escape

from zeus_core.jobs._job_history import JobHistory, SizeSummary
from zeus_core.jobs._job_records import JobDeclaration
from zeus_core.report.page import page, section_html
from zeus_core.report.run_pictures import Scale, svg
from zeus_core.report.run_sections import Section
from zeus_core.units import energy_text, number_text

_STYLE = """.run { fill: var(--accent); opacity: .4; }
.short { fill: none; stroke: var(--soft); stroke-width: 1.5; }
"""
_MEAN_APART = 0.12  # of the room of a batch size, from its runs to their mean
_PREFIXES = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))
_TALLEST = 3.0  # times the dearest run that reached the target: what is above would hide the others
TABLE_COLUMNS = ("batch size", "runs", "reached", "cost (95 %)", "epochs", "energy", "")


def job_page(name: str, declaration: JobDeclaration, history: JobHistory) -> str:
    """Return the page: cost by batch size with intervals, and regret over the runs.

    Args:
        name: The name of the job.
        declaration: Its target and objective.
        history: Its runs.
    """
    model = history.gpu_model or "GPUs of an unknown model"
    elsewhere = f" {history.elsewhere} runs on other GPUs are left out." if history.elsewhere else ""
    facts = f"{len(history.runs)} runs on {model}; target {declaration.target}; objective {declaration.objective}."
    costs = Section(
        "costs",
        "Cost of a run by batch size",
        "Each pale dot is a run that reached the target. Beside them is the mean, with a bar where it lies with 95 %; "
        "that of the best batch size is orange. A cross is a run that was stopped short of the target.",
        TABLE_COLUMNS,
        [table_row(size, history.best, "") for size in history.sizes],
    )
    regret = Section(
        "regret",
        "Regret over the runs",
        "The cost so far beyond that of as many runs at the best batch size, in units of one of them. It levels off "
        "once the search is over.",
    )
    head = f'<h1>{escape(name)}</h1><p class="soft">{escape(facts + elsewhere)}</p>'
    sections = section_html(costs, _cost_picture(history)) + section_html(regret, _regret_picture(history))
    return page(name, head + sections, _STYLE)


def _cost_picture(history: JobHistory) -> str:
    sizes = history.sizes
    if history.best is None:
        return "<p>No run has reached the target yet.</p>"
    costs, short = _costs(history, "reached"), _costs(history, "stopped")
    highest = _TALLEST * max(cost for _, cost in costs)
    tops = [size.high_cost for size in sizes if size.high_cost is not None] + [cost for _, cost in costs + short]
    scale = Scale(-0.5, len(sizes) - 0.5, 0.0, 1.05 * max(top for top in tops if top < highest))
    places = {size.batch_size: float(at) for at, size in enumerate(sizes)}
    parts = [scale.grid("cost", None)]
    for size, at in places.items():
        parts.append(f'<text x="{scale.x(at):.0f}" y="{scale.bottom_y + 20}" text-anchor="middle">{size}</text>')
    for size, cost in costs:
        parts.append(f'<circle class="run" cx="{scale.x(places[size]):.1f}" cy="{scale.y(cost):.1f}" r="4"/>')
    for size, cost in short:
        x, y = scale.x(places[size]) - 4, max(scale.y(cost), 0.0) - 4
        parts.append(f'<path class="short" d="M{x:.1f} {y:.1f}l8 8m0 -8l-8 8"/>')
    parts += [_mean(scale, places[one.batch_size], one, one == history.best) for one in sizes]
    return svg("Cost by batch size", parts)


def _costs(history: JobHistory, outcome: str) -> list[tuple[int, float]]:
    """Return batch size and cost of the runs with an outcome and a known cost."""
    records = (run.record for run in history.runs if run.record.outcome == outcome)
    return [(record.batch_size, record.last.cost) for record in records if record.last.cost is not None]


def _mean(scale: Scale, at: float, size: SizeSummary, is_best: bool) -> str:
    if size.mean_cost is None:
        return ""
    x, kind = scale.x(at + _MEAN_APART), "chosen" if is_best else "trial"
    mark = f'<circle class="{kind}" cx="{x:.1f}" cy="{scale.y(size.mean_cost):.1f}" r="5"/>'
    if size.low_cost is None or size.high_cost is None:
        return mark
    top = max(scale.y(size.high_cost), 0.0)
    return f'<path class="{kind}" d="M{x:.1f},{scale.y(size.low_cost):.1f}V{top:.1f}"/>{mark}'


def _regret_picture(history: JobHistory) -> str:
    best = history.best
    if best is None or best.mean_cost is None:
        return "<p>No cost is known yet.</p>"
    regrets = [regret / best.mean_cost for regret in history.regrets()]
    scale = Scale(1.0, len(regrets), 0.0, 1.05 * max(*regrets, 1.0))
    places = [(scale.x(run), scale.y(max(regret, 0.0))) for run, regret in enumerate(regrets, start=1)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        scale.grid("regret", None),
        f'<polyline class="line" points="{line}"/>',
        f'<circle class="trial" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3"/>',
        f'<text x="{places[0][0]:.1f}" y="{scale.bottom_y + 20}">run 1</text>',
        f'<text x="{places[-1][0]:.1f}" y="{scale.bottom_y + 20}" text-anchor="end">run {len(regrets)}</text>',
    ]
    return svg("Regret over the runs", parts)


def table_row(size: SizeSummary, best: SizeSummary | None, missing: str) -> tuple[str, ...]:
    """Return the cells of a batch size, for `TABLE_COLUMNS`.

    Args:
        size: The batch size.
        best: The best one; None if it is not known.
        missing: The text of a number that is not known.
    """
    cost = missing if size.mean_cost is None else _short(size.mean_cost)
    if size.low_cost is not None and size.high_cost is not None:
        cost += f" ({_short(size.low_cost)} to {_short(size.high_cost)})"
    return (
        *(str(size.batch_size), str(size.runs), str(size.reached), cost),
        missing if size.mean_epochs is None else number_text(size.mean_epochs),
        missing if size.mean_joules is None else energy_text(size.mean_joules),
        ", ".join(filter(None, ["best" if size == best else "", size.note])),
    )


def _short(value: float) -> str:
    """Format a number with three digits and a prefix of thousands."""
    scale, prefix = next(((scale, prefix) for scale, prefix in _PREFIXES if abs(value) >= 0.9995 * scale), (1.0, ""))
    return number_text(value / scale) + prefix
