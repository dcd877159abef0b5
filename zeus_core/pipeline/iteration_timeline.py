"""The timeline of a pipeline in a report on a run: an iteration of all ranks, from the traces beside the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS
from zeus_core.report.run_sections import Section
from zeus_core.tracing.merge import merge, traces_in
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import duration_text

_MAX_TRACE_BYTES = 4_000_000  # of all ranks, gzipped: they are read within some 20 s
_MAX_BARS = 6_000  # of some 150 bytes each in the page
_WIDTH, _LEFT, _ROW, _BAR = 860, 60, 26, 20
_LOWEST_OPACITY = 0.3  # of the lowest clock; the highest has 1
_COLORS = {"forward": "steps", "backward": "reference", "other": "idle"}
_KEYS = {"forward": "forward", "backward": "backward", "other": "transfers and the rest"}


class _Bar(NamedTuple):
    """An instruction; seconds are those of the trace."""

    rank: int
    kind: str
    begin: float
    end: float
    microbatch: int
    clock_mhz: int | None


class RecordedIteration(NamedTuple):
    """The latest iteration that all ranks have recorded.

    Attributes:
        step: Its number.
        bars: Its instructions.
    """

    step: int
    bars: list[_Bar]


def pipeline_section(place: Path, run: RunRecord) -> tuple[Section, str] | None:
    """Return the section on the pipeline of a run, with its picture; see `read_iteration`."""
    iteration = read_iteration(place, run)
    if iteration is None:
        return None
    text = f"Step {iteration.step}, the latest that all ranks have recorded. Point at an instruction for its clock."
    return Section("pipeline", "The pipeline", text), timeline_picture(iteration)


def read_iteration(place: Path, run: RunRecord) -> RecordedIteration | None:
    """Return the latest iteration of a pipeline; None if no traces of it are there, or too large ones.

    Args:
        place: The folder of the run, or its file.
        run: The run.

    Raises:
        UsageError: There are traces, and none of them can be read.
    """
    folder = place.parent if place.is_file() else place
    try:
        paths = traces_in(folder)
    except UsageError:
        try:
            paths = traces_in(folder.parent)
        except UsageError:
            return None
    if sum(path.stat().st_size for path in paths) > _MAX_TRACE_BYTES:
        return None
    trace = merge(paths).trace
    if not run.latest.begun_at_seconds - 1 <= trace.base_nanoseconds / 1e9 <= run.latest.until_seconds:
        return None  # they are of an earlier run
    return _latest(list(trace.events))


def _latest(events: Iterable[Mapping[str, Any]]) -> RecordedIteration | None:
    steps: dict[int, dict[int, tuple[float, float]]] = {}
    bars = []
    for event in events:
        if event["ph"] != "X":
            continue
        arguments = event.get("args", {})
        begin, end = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
        if "microbatch" in arguments:
            clock_mhz = arguments.get("clock_mhz")
            bars.append(_Bar(event["pid"], event["name"], begin, end, arguments["microbatch"], clock_mhz))
        elif event["name"] == "step" and "step" in arguments:
            steps.setdefault(arguments["step"], {})[event["pid"]] = begin, end
    ranks = {bar.rank for bar in bars}
    common = [step for step, spans in steps.items() if ranks and ranks <= spans.keys()]
    if not common:
        return None
    spans = steps[max(common)]
    own = [bar for bar in bars if spans[bar.rank][0] <= bar.begin < spans[bar.rank][1]]
    if len(own) > _MAX_BARS:
        own = [bar for bar in own if bar.kind in COMPUTE_KINDS]
    return RecordedIteration(max(common), own) if 0 < len(own) <= _MAX_BARS else None


def timeline_picture(iteration: RecordedIteration) -> str:
    """Draw the instructions of each rank over time; those at lower clocks are paler."""
    bars = iteration.bars
    ranks = sorted({bar.rank for bar in bars})
    begin, end = min(bar.begin for bar in bars), max(bar.end for bar in bars)
    width = (_WIDTH - _LEFT - 10) / max(end - begin, 1e-9)
    clocks = [bar.clock_mhz for bar in bars if bar.clock_mhz is not None]
    shapes = [
        f'<text x="{_LEFT - 8}" y="{_ROW * row + 15}" text-anchor="end">rank {rank}</text>'
        for row, rank in enumerate(ranks)
    ]
    for bar in bars:
        x, length = _LEFT + (bar.begin - begin) * width, max((bar.end - bar.begin) * width, 0.5)
        clock = "" if bar.clock_mhz is None else f" at {bar.clock_mhz} MHz"
        label = f"{bar.kind} {bar.microbatch}{clock}: {duration_text(bar.end - bar.begin)}"
        opacity = "" if bar.clock_mhz is None else f' opacity="{_opacity(bar.clock_mhz, clocks):.2f}"'
        place = f'x="{x:.1f}" y="{_ROW * ranks.index(bar.rank)}" width="{length:.1f}" height="{_BAR}"'
        shapes.append(
            f'<rect class="fill-{_COLORS[_group(bar.kind)]}"{opacity} {place}><title>{escape(label)}</title></rect>'
        )
    height = _ROW * len(ranks) + 18
    shapes.append(f'<text x="{_LEFT}" y="{height - 4}">0</text>')
    shapes.append(f'<text x="{_WIDTH - 10}" y="{height - 4}" text-anchor="end">{duration_text(end - begin)}</text>')
    groups = [group for group in _COLORS if any(_group(bar.kind) == group for bar in bars)]
    keys = [f'<i class="back-{_COLORS[group]}"></i>{_KEYS[group]}' for group in groups]
    if clocks:
        keys.append(f"{min(clocks)} MHz (pale) to {max(clocks)} MHz")
    legend = "".join(f'<span class="key">{key}</span>' for key in keys)
    label = "Timeline of one iteration of the pipeline"
    svg = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(shapes)}</svg>'
    return f'{svg}<p class="legend">{legend}</p>'


def _opacity(clock_mhz: int, clocks: list[int]) -> float:
    low, high = min(clocks), max(clocks)
    return 1.0 if high == low else _LOWEST_OPACITY + (1 - _LOWEST_OPACITY) * (clock_mhz - low) / (high - low)


def _group(kind: str) -> str:
    return next((group for group in ("forward", "backward") if kind.startswith(group)), "other")
