"""A page on a recurring job: one HTML file that needs nothing else, in light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from zeus_core.jobs._job_history import JobHistory, SizeSummary
from zeus_core.jobs._job_records import JobDeclaration
from zeus_core.units import energy_text, number_text

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 30, 45
_TICKS = 7  # at most, beside that at 0
_PREFIXES = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #ffffff; --faint: #d5dae0; --mark: #1769aa;
        --best: #c05000; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --paper: #14191f; --faint: #3a444f; --mark: #6db3f2; --best: #ffa657; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 48rem;
       margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.axis { stroke: var(--faint); } .run { fill: var(--mark); opacity: .5; } .mean { fill: var(--mark); }
.interval { stroke: var(--mark); stroke-width: 2; } .best { fill: var(--best); stroke: var(--best); }
.line { fill: none; stroke: var(--mark); stroke-width: 2; }
.short { fill: none; stroke: var(--ink); stroke-width: 1.5; opacity: .7; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: right; padding: .2rem .5rem;
        border-bottom: 1px solid var(--faint); white-space: nowrap; } th:last-child, td:last-child { text-align: left;
        white-space: normal; }
"""


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
    return "\n".join(
        [
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title>',
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>',
            f"<h1>{escape(name)}</h1><p>{escape(facts + elsewhere)}</p>",
            "<h2>Cost of a run by batch size</h2>",
            "<p>Each pale dot is a run that reached the target. Beside them is the mean, with a bar where it lies with "
            "95 %; that of the best batch size is orange. A cross is a run that was stopped short of the target.</p>",
            _cost_picture(history),
            _table(history.sizes, history.best),
            "<h2>Regret over the runs</h2>",
            "<p>The cost so far beyond that of as many runs at the best batch size, in units of one of them. It levels "
            "off once the search is over.</p>",
            _regret_picture(history),
            "</body></html>\n",
        ]
    )


def _cost_picture(history: JobHistory) -> str:
    sizes, best = history.sizes, history.best
    if best is None:
        return "<p>No run has reached the target yet.</p>"
    costs = _costs(history, "reached")
    highest = 3 * max(cost for _, cost in costs)  # an interval, or a stopped run, beyond it would hide the others
    tops = [size.high_cost for size in sizes if size.high_cost is not None]
    tops += [cost for _, cost in (*costs, *_costs(history, "stopped"))]
    ticks = _ticks(max(top for top in tops if top < highest))
    step = (_WIDTH - _LEFT - _RIGHT) / len(sizes)
    places = {size.batch_size: _LEFT + step * (at + 0.5) for at, size in enumerate(sizes)}
    parts = [_axes(ticks, "cost")]
    parts += [f'<text x="{x:.0f}" y="{_HEIGHT - 22}" text-anchor="middle">{size}</text>' for size, x in places.items()]
    parts += [f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">batch size</text>']
    for batch_size, cost in costs:
        height = _height(cost, ticks[-1])
        parts.append(f'<circle class="run" cx="{places[batch_size]:.1f}" cy="{height:.1f}" r="4"/>')
    for batch_size, cost in _costs(history, "stopped"):
        x, y = places[batch_size] - 4, max(_height(cost, ticks[-1]), 0.0) - 4
        parts.append(f'<path class="short" d="M{x:.1f} {y:.1f}l8 8m0 -8l-8 8"/>')
    parts += [_mean(size, places[size.batch_size] + 12, ticks[-1], size == best) for size in sizes]
    return _svg("Cost by batch size", parts)


def _costs(history: JobHistory, outcome: str) -> list[tuple[int, float]]:
    """Return batch size and cost of the runs with an outcome and a known cost."""
    records = (run.record for run in history.runs if run.record.outcome == outcome)
    return [(record.batch_size, record.last.cost) for record in records if record.last.cost is not None]


def _mean(size: SizeSummary, x: float, top: float, is_best: bool) -> str:
    if size.mean_cost is None:
        return ""
    kind = "best" if is_best else ""
    mark = f'<circle class="mean {kind}" cx="{x:.1f}" cy="{_height(size.mean_cost, top):.1f}" r="5"/>'
    if size.low_cost is None or size.high_cost is None:
        return mark
    low, high = _height(size.low_cost, top), max(_height(size.high_cost, top), 0.0)
    return f'<line class="interval {kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>{mark}'


def _regret_picture(history: JobHistory) -> str:
    best = history.best
    if best is None or best.mean_cost is None:
        return "<p>No cost is known yet.</p>"
    regrets = [regret / best.mean_cost for regret in history.regrets()]
    ticks = _ticks(max(*regrets, 1.0))
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(regrets) - 1, 1)
    heights = [_height(max(regret, 0.0), ticks[-1]) for regret in regrets]
    points = " ".join(f"{_LEFT + at * step:.1f},{height:.1f}" for at, height in enumerate(heights))
    parts = [
        _axes(ticks, "regret"),
        f'<polyline class="line" points="{points}"/>',
        f'<circle class="mean" cx="{_LEFT}" cy="{heights[0]:.1f}" r="3"/>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 22}">run 1</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 22}" text-anchor="end">run {len(regrets)}</text>',
    ]
    return _svg("Regret over the runs", parts)


def _svg(title: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}</svg>'


def _axes(ticks: Sequence[float], label: str) -> str:
    lines = [
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
        for tick in ticks
        for y in (_height(tick, ticks[-1]),)
    ]
    return f'{"".join(lines)}<text x="4" y="14">{label}</text>'


def _ticks(highest: float) -> list[float]:
    """Return round numbers from 0 to the first one that is not below a value."""
    raw = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * _TICKS >= highest * (1 - 1e-9))
    return [number * step for number in range(math.ceil(highest / step - 1e-9) + 1)]


def _short(value: float) -> str:
    """Format a number with three digits and a prefix of thousands."""
    scale, prefix = next(((scale, prefix) for scale, prefix in _PREFIXES if abs(value) >= 0.9995 * scale), (1.0, ""))
    return number_text(value / scale) + prefix


def _height(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / top


def _table(sizes: Sequence[SizeSummary], best: SizeSummary | None) -> str:
    header = (
        "<tr><th>batch size</th><th>runs</th><th>reached</th><th>cost</th><th>epochs</th><th>energy</th><th></th></tr>"
    )
    rows = [
        f"<tr><td>{size.batch_size}</td><td>{size.runs}</td><td>{size.reached}</td><td>{cost_text(size)}</td>"
        f"<td>{'' if size.mean_epochs is None else number_text(size.mean_epochs)}</td>"
        f"<td>{'' if size.mean_joules is None else energy_text(size.mean_joules)}</td>"
        f"<td>{escape(note_text(size, best))}</td></tr>"
        for size in sizes
    ]
    return f"<table>{header}{''.join(rows)}</table>"


def cost_text(size: SizeSummary) -> str:
    """Return the mean cost of a batch size, with its interval, for a table."""
    if size.mean_cost is None:
        return "-"
    mean = _short(size.mean_cost)
    if size.low_cost is None or size.high_cost is None:
        return mean
    return f"{mean} ({_short(size.low_cost)} to {_short(size.high_cost)})"


def note_text(size: SizeSummary, best: SizeSummary | None) -> str:
    """Return what else is to be known of a batch size, for a table."""
    return ", ".join(filter(None, ["best" if size == best else "", size.note]))
