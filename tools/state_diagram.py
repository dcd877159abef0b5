"""Draws a state diagram in Mermaid's language as SVG: a column for each state, a row for each transition.

The pages keep Mermaid's language, which GitHub draws; the site is read without a network, and so without Mermaid.
"""

from __future__ import annotations

import html
import re
from typing import Any

_STATE = re.compile(r'state "(.+)" as (\w+)')
_TRANSITION = re.compile(r"(\[\*\]|\w+) --> (\w+)(?: : (.+))?")
_COLUMN, _ROW, _HEAD = 86, 26, 44
_LETTER = 5.6  # the width of most letters of the labels, of 11 px


def draw(source: str, *_: Any, **__: Any) -> str:
    """Return the picture of a diagram; a format of pymdownx.superfences.

    Raises:
        ValueError: A line is none that our tables write.
    """
    states: dict[str, str] = {}
    rows: list[tuple[str, str, str]] = []
    for line in filter(None, map(str.strip, source.splitlines()[1:])):
        if match := _STATE.fullmatch(line):
            states[match[2]] = match[1]
        elif match := _TRANSITION.fullmatch(line):
            rows.append((match[1], match[2], match[3] or ""))
        else:
            raise ValueError(f"no line of a state diagram: {line}")
    at = {name: _COLUMN * (place + 0.5) for place, name in enumerate(states)}
    width, height = _COLUMN * len(states), _HEAD + _ROW * (len(rows) + 0.5)
    pieces = [_column(x, states[name], height) for name, x in at.items()]
    for number, (begin, end, label) in enumerate(rows, 1):
        pieces.append(_row(at.get(begin), at[end], _HEAD + _ROW * number, label, width))
    return (
        f'<svg class="state-diagram" viewBox="0 0 {width} {height:g}" style="max-width: {1.2 * width:g}px" '
        f'role="img" aria-label="State diagram">{"".join(pieces)}</svg>'
    )


def _column(x: float, name: str, height: float) -> str:
    words = name.split(" ")
    half = (len(words) + 1) // 2 if len(name) > 12 else len(words)
    lines = [" ".join(words[:half]), *filter(None, [" ".join(words[half:])])]
    texts = "".join(
        f'<text x="{x:g}" y="{_HEAD / 2 + 4 + 12 * (place - (len(lines) - 1) / 2):g}">{html.escape(line)}</text>'
        for place, line in enumerate(lines)
    )
    box = f'<rect x="{x - _COLUMN / 2 + 3:g}" y="2" width="{_COLUMN - 6}" height="{_HEAD - 8}" rx="5"/>'
    return f'<path class="life" d="M{x:g} {_HEAD - 6}V{height:g}"/>{box}{texts}'


def _row(begin: float | None, end: float, y: float, label: str, width: float) -> str:
    if begin is None:
        return f'<circle cx="{end:g}" cy="{y:g}" r="5"/>'
    side = 6 if begin > end else -6
    arrow = f'<path d="M{begin:g} {y:g}H{end + side / 2:g}"/><path class="head" d="M{end:g} {y:g}l{side} -4v8z"/>'
    half = _LETTER * len(label) / 2
    middle = min(max((begin + end) / 2, half), width - half)
    return f'{arrow}<text x="{middle:g}" y="{y - 5:g}">{html.escape(label)}</text>'
