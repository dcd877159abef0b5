"""The pictures of a report on runs: SVG whose colours are those of the page, in light and dark. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from zeus_core.events import Activity
from zeus_core.optimizer.search_result import CHOSEN, SearchResult
from zeus_core.optimizer.setting_history import SettingChange
from zeus_core.report.page import Html, fill
from zeus_core.report.run_lines import Runs, activities_in_order
from zeus_core.search.comparison import energy_error_fraction
from zeus_core.settings.entry import setting_text
from zeus_core.training.record.power_series import EnergyPoint, joules_at
from zeus_core.training.record.run_records import PartRecord, RunRecord
from zeus_core.units import duration_text, energy_text, number_text

_WIDTH = 860
_HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 30
_POWER_BINS = 240
_MAX_MARKS = 24  # of changes of the setting: more would hide the power


def activity_bars(runs: Runs) -> str:
    """Draw the energy of each run as a bar, divided among the activities."""
    largest = max((run.account.total.measured_joules for _, run in runs), default=0.0)
    if largest <= 0:
        return ""
    left = 0.0 if len(runs) == 1 else 190.0
    width, parts, seen = _WIDTH - left - 120, [], dict[Activity, None]()
    for number, (name, run) in enumerate(runs):
        y, x = 8 + 40 * number, left
        if left:
            parts.append(text_at(x - 10, y + 18, name if len(name) <= 26 else f"...{name[-23:]}", "end"))
        for activity, tally in activities_in_order(run):
            length = width * tally.measured_joules / largest
            seen[activity] = None
            title = f"{activity.words}: {energy_text(tally.measured_joules, tally.measured.uncertainty_joules)}"
            parts.append(shape("rect", f"fill-{_color(activity)}", title, x=x, y=y, width=length, height=26))
            x += length
        parts.append(text_at(x + 8, y + 18, energy_text(run.account.total.measured_joules)))
    key = '<span class="key"><i class="back-$color"></i>$words</span>'
    legend = [fill(key, color=_color(activity), words=activity.words) for activity in seen]
    picture = svg("Energy by activity", parts, 8 + 40 * len(runs))
    return fill('$picture<p class="legend">$legend</p>', picture=Html(picture), legend=legend)


def _color(activity: Activity) -> Activity:
    """Return the activity in whose color one is drawn: those of a user's own have one together."""
    return Activity.OTHER if activity.is_own else activity


def power_picture(run: RunRecord, changes: Sequence[SettingChange]) -> str:
    """Draw the power of all GPUs over the time of the run, without the time between its parts."""
    pieces, offset, edges = [], 0.0, []
    for part in run.parts:
        points = _total_points(part)
        if len(points) > 1:
            pieces.append(list(_power(points, offset)))
            edges.append((offset, part))
            offset += points[-1].seconds
    if not pieces:
        return ""
    scale = Scale(0.0, offset, 0.0, 1.1 * max(watts for piece in pieces for _, watts in piece))
    parts = [scale.grid("W", duration_text)]
    for piece in pieces:
        line = scale.line(piece)
        begin, end = scale.x(piece[0][0]), scale.x(piece[-1][0])
        bottom = scale.bottom_y
        parts.append(shape("polygon", "area", points=f"{begin:.1f},{bottom} {line} {end:.1f},{bottom}"))
        parts.append(shape("polyline", "line", points=line))
    for begin, part in edges[1:]:
        parts.append(scale.mark(begin, f"part from step {part.begin_step}", "mark-part"))
    begin, latest = edges[-1]
    for change in changes[:_MAX_MARKS]:
        at = begin + change.at_seconds - latest.begun_at_seconds
        setting = "original" if change.setting is None else setting_text(change.setting, change.unit)
        if begin <= at <= offset:
            parts.append(scale.mark(at, f"{setting}: {change.reason}", "mark-change"))
    return svg("Power over time", parts)


def _power(points: Sequence[EnergyPoint], offset: float) -> Iterator[tuple[float, float]]:
    """Yield the power between each two points, at the beginning and at the end of the time between them."""
    for a, b in pairwise(points):
        watts = (b.joules - a.joules) / (b.seconds - a.seconds)
        yield offset + a.seconds, watts
        yield offset + b.seconds, watts


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
    scale = Scale(0.0, max(point.joules for point in known), *_padded(min(values), max(values)))
    parts = [scale.grid("loss", energy_text)]
    for number, (name, points) in enumerate(curves.items()):
        kind = "pale" if number == 0 and len(curves) > 1 else "line"
        line = scale.line((point.joules, point.value) for point in points)
        parts.append(shape("polyline", kind, name, points=line))
        parts.append(text_at(scale.x(points[-1].joules) - 6, scale.y(points[-1].value) - 8, name, "end"))
    return svg("Losses over the energy of the run", parts)


def search_picture(search: SearchResult) -> str:
    """Draw time and energy of a step at each setting, with the intervals of the energy."""
    points = search.points()
    if len(points) < 2:
        return ""
    seconds = [trial.seconds_per_step for trial, _ in points]
    joules = [trial.joules_per_step for trial, _ in points]
    off = [min(energy_error_fraction(trial), 0.5) * trial.joules_per_step for trial, _ in points]
    lows, highs = ([energy + sign * error for energy, error in zip(joules, off, strict=True)] for sign in (-1, 1))
    begin, end = _padded(min(seconds), max(seconds))
    scale = Scale(begin, end + 0.1 * (end - begin), *_padded(min(lows), max(highs)))  # with room for a label
    parts = [scale.grid("J per step", lambda value: duration_text(value))]
    parts.append(shape("polyline", "thin", points=scale.line(zip(seconds, joules, strict=True))))
    labels = []
    for number, (trial, mark) in enumerate(points):
        name = f"{setting_text(trial.setting, search.unit)}{f' ({mark})' if mark else ''}"
        kind, x, y = "chosen" if mark == CHOSEN else "trial", scale.x(seconds[number]), scale.y(joules[number])
        title = f"{name}: {energy_text(joules[number])}, {duration_text(seconds[number])}"
        parts.append(shape("path", kind, d=f"M{x:.1f},{scale.y(lows[number]):.1f}V{scale.y(highs[number]):.1f}"))
        parts.append(shape("circle", kind, title, cx=x, cy=y, r=4.5))
        labels.append((mark != CHOSEN, not mark, number, x + 9, y - 8, name))
    kept: list[tuple[float, float]] = []
    for *_, x, y, name in sorted(labels):  # the choice first: an earlier label hides later ones
        if all(abs(x - other_x) > 95 or abs(y - other_y) > 14 for other_x, other_y in kept):
            kept.append((x, y))
            parts.append(text_at(x, y, name))
    return svg("Time and energy of a step at each setting", parts)


class Scale:
    """The axes of a picture, between the ends of what it shows."""

    bottom_y = _HEIGHT - _BOTTOM
    """The lower end of the axes, in the picture."""

    def __init__(self, begin: float, end: float, bottom: float, top: float) -> None:
        self._begin, self._end = begin, end if end > begin else begin + 1.0
        self._bottom, self._top = bottom, top if top > bottom else bottom + 1.0

    def x(self, value: float) -> float:
        """Return where a value lies from left to right."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - self._begin) / (self._end - self._begin)

    def y(self, value: float) -> float:
        """Return where a value lies from top to bottom."""
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * (value - self._bottom) / (self._top - self._bottom)

    def grid(self, unit: str, label: Callable[[float], str] | None) -> str:
        """Draw lines at round numbers, with their labels; none below the picture if there is no `label`."""
        lines = []
        for value in _round_numbers(self._bottom, self._top):
            lines.append(shape("path", "axis", d=f"M{_LEFT},{self.y(value):.1f}H{_WIDTH - _RIGHT}"))
            lines.append(text_at(_LEFT - 8, self.y(value) + 4, number_text(value), "end"))
        if label is not None:
            values = _round_numbers(self._begin, self._end)
            lines += [text_at(self.x(value), self.bottom_y + 20, label(value), "middle") for value in values]
        return f'{"".join(lines)}<text class="unit" x="0" y="12">{unit}</text>'

    def line(self, values: Iterable[tuple[float, float]]) -> str:
        """Return the points of a line through some values."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in values)

    def mark(self, at: float, title: str, kind: str) -> str:
        """Draw a vertical line at a moment."""
        return shape("path", kind, title, d=f"M{self.x(at):.1f},{_TOP}V{self.bottom_y}")


def _round_numbers(low: float, high: float) -> list[float]:
    """Return three to six round numbers within a range."""
    step = 10.0 ** math.floor(math.log10((high - low) / 3)) if high > low else 1.0
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + pad


def shape(tag: str, kind: str, title: str = "", **attributes: object) -> Html:
    """Return a shape of a class of the page's style, with a title that a browser shows where one points at it."""
    rounded = {name: f"{value:.1f}" if isinstance(value, float) else value for name, value in attributes.items()}
    given = [fill(' $name="$value"', name=name, value=value) for name, value in rounded.items()]
    about = fill("<title>$title</title>", title=title) if title else ""
    return fill('<$tag class="$kind"$given>$about</$tag>', tag=tag, kind=kind, given=given, about=about)


def text_at(x: float, y: float, text: str, anchor: str = "start") -> Html:
    """Return a text at a point of a picture."""
    where = {"x": f"{x:.1f}", "y": f"{y:.1f}", "anchor": anchor}
    return fill('<text x="$x" y="$y" text-anchor="$anchor">$text</text>', text=text, **where)


def svg(title: str, parts: Sequence[str], height: int = _HEIGHT) -> str:
    """Return a picture of some parts, drawn within a `Scale`."""
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}">{"".join(parts)}</svg>'
