"""The result of a training for people: a few labelled lines in a box, shown once at its end."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from zeus_core.units import watt_hours_from_joules

_TITLE = "zeus-core"


def show_result(rows: Mapping[str, str]) -> None:
    """Write a box of labelled lines to standard error; nothing without lines.

    The text is plain: no colours and no control codes, so that it reads the same in a notebook and in a file. Where the
    stream cannot encode a character, the whole box is in ASCII. Never raises: a closed stream gets no box.
    """
    stream = sys.stderr
    if not rows or stream is None:
        return
    try:
        text = _boxed(rows)
        if not _is_encodable(text, getattr(stream, "encoding", None) or "utf-8"):
            text = _boxed({label: _in_ascii(row) for label, row in rows.items()})
        stream.write(text)
        stream.flush()
    except Exception:  # a replaced stream may raise anything, and there is no better place to say so
        return


def _is_encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # which the stream itself may hide by writing "\\xb1"
        return False
    return True


def _in_ascii(text: str) -> str:
    return text.replace("±", "+-").encode("ascii", "replace").decode()


def energy_text(joules: float, uncertainty_joules: float | None = None) -> str:
    """Format an energy with its uncertainty, in the unit that keeps the digits few."""
    if uncertainty_joules is not None and not math.isfinite(uncertainty_joules):
        return "an unknown energy"
    largest = max(abs(joules), uncertainty_joules or 0.0)
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if largest >= scale), (1.0, "J"))
    return amount_text(joules / scale, (uncertainty_joules or 0.0) / scale, unit)


def number_text(value: float) -> str:
    """Format a number for people: three significant digits and all before the point; an exponent below 0.0001 alone."""
    if not 1e-4 <= abs(value) < math.inf:
        return f"{value:.3g}"
    text = f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def watt_hours_text(joules: float) -> str:
    """Format an energy in Wh, or in kWh from 1 kWh on."""
    watt_hours = watt_hours_from_joules(joules)
    return f"{number_text(watt_hours)} Wh" if watt_hours < 1000 else f"{number_text(watt_hours / 1000)} kWh"


def amount_text(amount: float, uncertainty: float, unit: str) -> str:
    """Format an amount with as many digits as its uncertainty leaves, or with three if that is 0."""
    if not uncertainty:
        return f"{number_text(amount)} {unit}"
    decimals = max(1 - math.floor(math.log10(uncertainty)), 0)  # two digits of the uncertainty
    return f"{amount:.{decimals}f} ±{uncertainty:.{decimals}f} {unit}"


_LEAST_TEXT = 24  # characters in a line of a wrapped row
_UNLIMITED = 10**6  # where there is no terminal
_UNITS = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"))


def duration_text(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def _boxed(rows: Mapping[str, str]) -> str:
    import shutil  # imported here, as few processes show a result
    import textwrap

    label_width = max(len(label) for label in rows)
    room = max(shutil.get_terminal_size((_UNLIMITED, 0)).columns - label_width - len("|   |") - 1, _LEAST_TEXT)
    lines = []
    for label, text in rows.items():
        first, *more = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{label:{label_width}}  {first}", *(f"{'':{label_width}}  {line}" for line in more)]
    width = max(len(line) for line in lines)
    edge = f"+- {_TITLE} ".ljust(width + 3, "-") + "+\n"
    return edge + "".join(f"| {line:{width}} |\n" for line in lines) + "+" + "-" * (width + 2) + "+\n"
