"""A page on a recurring job: one HTML file that needs nothing else, in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from zeus_core.adapters._result import energy_text
from zeus_core.optimizer.batch_size._history import JobHistory, SizeSummary
from zeus_core.optimizer.batch_size._record import JobDeclaration

__all__ = ["job_page"]

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 45

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #ffffff; --faint: #d5dae0; --mark: #1769aa;
        --best: #c05000; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --paper: #14191f; --faint: #3a444f; --mark: #6db3f2; --best: #ffa657; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 44rem;
       margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.axis { stroke: var(--faint); } .run { fill: var(--mark); opacity: .35; } .mean { fill: var(--mark); }
.interval { stroke: var(--mark); stroke-width: 2; } .best { fill: var(--best); stroke: var(--best); }
.line { fill: none; stroke: var(--mark); stroke-width: 2; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: right; padding: .2rem .5rem;
        border-bottom: 1px solid var(--faint); } th:last-child, td:last-child { text-align: left; }
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
            "<p>Each dot is a run that reached the target; the bar is where the mean lies with 95 %.</p>",
            _cost_picture(history),
            _table(history.sizes),
            "<h2>Regret over the runs</h2>",
            "<p>The cost so far beyond that of runs at the best batch size. It levels off once the search is over.</p>",
            _regret_picture(history.regrets()),
            "</body></html>\n",
        ]
    )


def _cost_picture(history: JobHistory) -> str:
    sizes, best = history.sizes, history.best
    reached = [(run.record.batch_size, run.record.last.cost) for run in history.runs if run.record.outcome == "reached"]
    costs = [cost for _, cost in reached if cost is not None]
    costs += [size.high_cost for size in sizes if size.high_cost is not None and size.high_cost < 3 * max(costs)]
    if not costs:
        return "<p>No run has reached the target yet.</p>"
    top = max(costs) * 1.05
    places = {
        size.batch_size: _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at + 0.5) / len(sizes) for at, size in enumerate(sizes)
    }
    parts = [_axes(top, "cost")]
    parts += [f'<text x="{x:.0f}" y="{_HEIGHT - 22}" text-anchor="middle">{size}</text>' for size, x in places.items()]
    parts += [f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">batch size</text>']
    for batch_size, cost in reached:
        if cost is not None:
            parts.append(f'<circle class="run" cx="{places[batch_size]:.1f}" cy="{_height(cost, top):.1f}" r="4"/>')
    for size in sizes:
        if size.mean_cost is None:
            continue
        x, kind = places[size.batch_size] + 12, "best" if best is not None and size == best else ""
        if size.low_cost is not None and size.high_cost is not None:
            low, high = _height(size.low_cost, top), max(_height(size.high_cost, top), 0.0)
            parts.append(f'<line class="interval {kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')
        parts.append(f'<circle class="mean {kind}" cx="{x:.1f}" cy="{_height(size.mean_cost, top):.1f}" r="5"/>')
    return _svg("Cost by batch size", parts)


def _regret_picture(regrets: Sequence[float]) -> str:
    if not regrets:
        return "<p>No cost is known yet.</p>"
    top = max(*regrets, 1e-9) * 1.05
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(regrets) - 1, 1)
    heights = [_height(max(regret, 0.0), top) for regret in regrets]
    points = " ".join(f"{_LEFT + at * step:.1f},{height:.1f}" for at, height in enumerate(heights))
    parts = [
        _axes(top, "regret"),
        f'<polyline class="line" points="{points}"/>',
        f'<circle class="mean" cx="{_LEFT}" cy="{heights[0]:.1f}" r="3"/>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 22}">run 1</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 22}" text-anchor="end">run {len(regrets)}</text>',
    ]
    return _svg("Regret over the runs", parts)


def _svg(title: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}</svg>'


def _axes(top: float, label: str) -> str:
    lines = [
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * part:.3g}</text>'
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
        for y in (_height(top * part, top),)
    ]
    return f'{"".join(lines)}<text x="4" y="14">{label}</text>'


def _height(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / top


def _table(sizes: Sequence[SizeSummary]) -> str:
    header = (
        "<tr><th>batch size</th><th>runs</th><th>reached</th><th>cost</th><th>epochs</th><th>energy</th><th></th></tr>"
    )
    rows = [
        f"<tr><td>{size.batch_size}</td><td>{size.runs}</td><td>{size.reached}</td><td>{cost_text(size)}</td>"
        f"<td>{'' if size.mean_epochs is None else f'{size.mean_epochs:.3g}'}</td>"
        f"<td>{'' if size.mean_joules is None else energy_text(size.mean_joules)}</td><td>{escape(size.note)}</td></tr>"
        for size in sizes
    ]
    return f"<table>{header}{''.join(rows)}</table>"


def cost_text(size: SizeSummary) -> str:
    """Return the mean cost of a batch size, with its interval, for a table."""
    if size.mean_cost is None:
        return "-"
    if size.low_cost is None or size.high_cost is None:
        return f"{size.mean_cost:.4g}"
    return f"{size.mean_cost:.4g} ({size.low_cost:.4g} to {size.high_cost:.4g})"
