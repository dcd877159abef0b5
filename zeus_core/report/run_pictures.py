"""The pictures of a report on runs: SVG whose colours are those of the page, in light and dark. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

from zeus_core.events import Activity
from zeus_core.optimizer.search_result import CHOSEN, SearchResult
from zeus_core.optimizer.setting_history import SettingChange
from zeus_core.report.run_lines import activities_in_order
from zeus_core.search.comparison import energy_error_fraction
from zeus_core.settings.entry import setting_text
from zeus_core.training.record.power_series import EnergyPoint, joules_at
from zeus_core.training.record.run_records import PartRecord, RunRecord
from zeus_core.units import duration_text, energy_text, number_text

_WIDTH = 860
_HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 30
_POWER_BINS = 240
_LOG_FROM = 2.5
_MAX_MARKS = 24  # of changes of the setting: more would hide the power


def activity_bars(runs: Sequence[tuple[str, RunRecord]]) -> str:
    """Draw the energy of each run as a bar, divided among the activities."""
    largest = max((run.account.total.measured_joules for _, run in runs), default=0.0)
    if largest <= 0:
        return ""
    label_width = 0 if len(runs) == 1 else 190
    width, parts, seen = _WIDTH - label_width - 120, [], dict[Activity, None]()
    for number, (name, run) in enumerate(runs):
        y, x = 8 + 40 * number, float(label_width)
        if label_width:
            parts.append(f'<text x="{x - 10:.0f}" y="{y + 18}" text-anchor="end">{escape(_short(name, 26))}</text>')
        for activity, tally in activities_in_order(run):
            length = width * tally.measured_joules / largest
            seen[activity] = None
            text = f"{activity.words}: {energy_text(tally.measured_joules, tally.measured.uncertainty_joules)}"
            shape = f'x="{x:.1f}" y="{y}" width="{length:.2f}" height="26"'
            parts.append(f'<rect class="fill-{_color(activity)}" {shape}><title>{escape(text)}</title></rect>')
            x += length
        parts.append(
            f'<text x="{x + 8:.1f}" y="{y + 18}">{escape(energy_text(run.account.total.measured_joules))}</text>'
        )
    height = 8 + 40 * len(runs)
    legend = "".join(f'<span class="key"><i class="back-{_color(each)}"></i>{each.words}</span>' for each in seen)
    return f'{svg("Energy by activity", parts, height)}<p class="legend">{legend}</p>'


def _color(activity: Activity) -> Activity:
    """Return the activity in whose color one is drawn: those of a user's own have one together."""
    return Activity.OTHER if activity.is_own else activity


def power_picture(run: RunRecord, changes: Sequence[SettingChange]) -> str:
    """Draw the power of all GPUs over the time of the run, without the time between its parts."""
    pieces, offset, edges = [], 0.0, []
    for part in run.parts:
        points = _total_points(part)
        if len(points) > 1:
            pieces.append([EnergyPoint(offset + point.seconds, point.joules) for point in points])
            edges.append((offset, part))
            offset += points[-1].seconds
    if not pieces:
        return ""
    top = 1.1 * max((b.joules - a.joules) / (b.seconds - a.seconds) for piece in pieces for a, b in pairwise(piece))
    scale = Scale(0.0, offset, 0.0, top)
    parts = [scale.grid("W", duration_text)]
    for piece in pieces:
        steps = [f"M{scale.x(piece[0].seconds):.1f},{scale.y(0.0):.1f}"]
        for a, b in pairwise(piece):
            y = scale.y((b.joules - a.joules) / (b.seconds - a.seconds))
            steps.append(f"L{scale.x(a.seconds):.1f},{y:.1f}L{scale.x(b.seconds):.1f},{y:.1f}")
        area = "".join(steps)
        parts.append(f'<path class="area" d="{area}L{scale.x(piece[-1].seconds):.1f},{scale.y(0.0):.1f}Z"/>')
        parts.append(f'<path class="line" d="M{area.split("L", 1)[1]}"/>')
    for begin, part in edges[1:]:
        parts.append(_mark(scale, begin, f"part from step {part.begin_step}", "mark-part"))
    begin, latest = edges[-1]
    for change in changes[:_MAX_MARKS]:
        at = begin + change.at_seconds - latest.begun_at_seconds
        setting = "original" if change.setting is None else setting_text(change.setting, change.unit)
        if begin <= at <= offset:
            parts.append(_mark(scale, at, f"{setting}: {change.reason}", "mark-change"))
    return svg("Power over time", parts)


def _total_points(part: PartRecord) -> list[EnergyPoint]:
    """Return the energy of all devices that have reported it, at the same moments."""
    if part.power:
        return list(part.power)
    series = [device.power for device in part.devices if len(device.power) > 1]
    if not series:
        return []
    end = min(points[-1].seconds for points in series)
    moments = [point.seconds for point in series[0] if point.seconds <= end]
    if len(series) > 1:
        count = min(_POWER_BINS, max(map(len, series)))
        moments = [end * number / count for number in range(count + 1)]
    return [EnergyPoint(at, math.fsum(joules_at(points, at) for points in series)) for at in dict.fromkeys(moments)]


def loss_picture(run: RunRecord) -> str:
    """Draw the losses over the energy of the run."""
    curves = {name: points for name, points in run.losses.items() if "loss" in name and len(points) > 1}
    if not curves:
        return ""
    known = [point for points in curves.values() for point in points]
    values = [point.value for point in known]
    largest = max(point.joules for point in known)
    scale = Scale(0.0, largest, *_padded(min(values), max(values)))
    parts = [scale.grid("loss", energy_text)]
    for number, (name, points) in enumerate(curves.items()):
        places = [(scale.x(point.joules), scale.y(point.value)) for point in points]
        kind = "pale" if number == 0 and len(curves) > 1 else "line"
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="{kind}" points="{line}"><title>{escape(name)}</title></polyline>')
        x, y = places[-1]
        parts.append(f'<text x="{x - 6:.1f}" y="{y - 8:.1f}" text-anchor="end">{escape(name)}</text>')
    return svg("Losses over the energy of the run", parts)


def search_picture(search: SearchResult) -> str:
    """Draw time and energy of a step at each setting, with the intervals of the energy."""
    points = search.points()
    trials = [trial for trial, _ in points]
    if len(trials) < 2:
        return ""
    off = [min(energy_error_fraction(trial), 0.5) * trial.joules_per_step for trial in trials]
    seconds = [trial.seconds_per_step for trial in trials]
    lowest = min(trial.joules_per_step - error for trial, error in zip(trials, off, strict=True))
    highest = max(trial.joules_per_step + error for trial, error in zip(trials, off, strict=True))
    is_log = max(seconds) > _LOG_FROM * min(seconds)  # the lowest limits take several times as long
    low, high = _padded(min(seconds), max(seconds))  # and room for a label
    ends = (min(seconds) / 1.08, max(seconds) * 1.3) if is_log else (low, high + 0.1 * (high - low))
    scale = Scale(*ends, *_padded(lowest, highest), is_log=is_log)
    parts = [scale.grid("J per step", lambda value: duration_text(value))]
    places = [(scale.x(trial.seconds_per_step), scale.y(trial.joules_per_step)) for trial in trials]
    parts.append(f'<polyline class="thin" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
    names = [f"{setting_text(trial.setting, search.unit)}{f' ({mark})' if mark else ''}" for trial, mark in points]
    for (trial, mark), error, (x, y), name in zip(points, off, places, names, strict=True):
        kind = "chosen" if mark == CHOSEN else "trial"
        low, high = (scale.y(trial.joules_per_step + sign * error) for sign in (-1, 1))
        text = f"{name}: {energy_text(trial.joules_per_step)}, {duration_text(trial.seconds_per_step)}"
        parts.append(
            f'<path class="{kind}" d="M{x:.1f},{low:.1f}V{high:.1f}"/>'
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"><title>{escape(text)}</title></circle>'
        )
    marked = sorted(range(len(points)), key=lambda number: (points[number][1] != CHOSEN, not points[number][1]))
    for number in _without_overlaps(places, marked):
        x, y = places[number]
        parts.append(f'<text x="{x + 9:.1f}" y="{y - 8:.1f}">{names[number]}</text>')
    return svg("Time and energy of a step at each setting", parts)


def _without_overlaps(places: Sequence[tuple[float, float]], order: Sequence[int]) -> list[int]:
    """Return the numbers of the labels that hide no other one. An earlier one in the order hides later ones."""
    kept: list[int] = []
    for number in order:
        x, y = places[number]
        if all(abs(x - places[other][0]) > 95 or abs(y - places[other][1]) > 14 for other in kept):
            kept.append(number)
    return kept


class Scale:
    """The axes of a picture, between the ends of what it shows."""

    bottom_y = _HEIGHT - _BOTTOM
    """The lower end of the axes, in the picture."""

    def __init__(self, begin: float, end: float, bottom: float, top: float, is_log: bool = False) -> None:
        self._begin, self._end = begin, end if end > begin else begin + 1.0
        self._is_log = is_log  # of time
        self._bottom, self._top = bottom, top if top > bottom else bottom + 1.0

    def x(self, value: float) -> float:
        """Return where a value lies from left to right."""
        share = (value - self._begin) / (self._end - self._begin)
        if self._is_log:
            share = math.log(value / self._begin) / math.log(self._end / self._begin)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * share

    def y(self, value: float) -> float:
        """Return where a value lies from top to bottom."""
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * (value - self._bottom) / (self._top - self._bottom)

    def grid(self, unit: str, label: Callable[[float], str] | None) -> str:
        """Draw lines at round numbers, with their labels; none below the picture if there is no `label`."""
        lines = [
            f'<path class="axis" d="M{_LEFT},{self.y(value):.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 8}" y="{self.y(value) + 4:.1f}" text-anchor="end">{number_text(value)}</text>'
            for value in _round_numbers(self._bottom, self._top)
        ]
        y = _HEIGHT - _BOTTOM + 20
        lines += [
            f'<text x="{self.x(value):.1f}" y="{y}" text-anchor="middle">{escape(label(value))}</text>'
            for value in (_round_powers if self._is_log else _round_numbers)(self._begin, self._end)
            if label is not None
        ]
        return f'{"".join(lines)}<text class="unit" x="0" y="12">{unit}</text>'


def _mark(scale: Scale, at: float, text: str, kind: str) -> str:
    return f'<path class="{kind}" d="M{scale.x(at):.1f},{_TOP}V{scale.y(0.0):.1f}"><title>{escape(text)}</title></path>'


def _round_numbers(low: float, high: float) -> list[float]:
    """Return three to six round numbers within a range."""
    step = 10.0 ** math.floor(math.log10((high - low) / 3)) if high > low else 1.0
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _round_powers(low: float, high: float) -> list[float]:
    """Return round numbers within a range, evenly in their ratios."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in powers for factor in (1, 2, 5) if low <= (value := factor * 10.0**power) <= high]


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + pad


def svg(title: str, parts: Sequence[str], height: int = _HEIGHT) -> str:
    """Return a picture of some parts, drawn within a `Scale`."""
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}">{"".join(parts)}</svg>'


def _short(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"...{text[3 - characters :]}"
