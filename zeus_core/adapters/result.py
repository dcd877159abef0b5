"""The result of a training for people: a few labelled lines in a box, shown once at its end."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping

_TITLE = "zeus-core"


def show_result(rows: Mapping[str, str]) -> None:
    """Write a box of labelled lines to standard error; nothing without lines.

    The text is plain: no colours and no control codes, so that it reads the same in a notebook and in a file. Where the
    stream cannot encode a character, the whole box is in ASCII. Never raises: a closed stream gets no box.
    """
    if rows:
        _show(lambda: _boxed(rows), lambda: _boxed({label: _in_ascii(row) for label, row in rows.items()}))


def show_line(text: str) -> None:
    """Write a line to standard error, as `show_result` writes a box."""
    _show(lambda: f"{_TITLE}: {text}\n", lambda: f"{_TITLE}: {_in_ascii(text)}\n")


def _show(make: Callable[[], str], make_in_ascii: Callable[[], str]) -> None:
    stream = sys.stderr
    if stream is None:
        return
    try:
        text = make()
        stream.write(text if _is_encodable(text, getattr(stream, "encoding", None) or "utf-8") else make_in_ascii())
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


_LEAST_TEXT = 24  # characters in a line of a wrapped row
_MOST_COLUMNS = 100  # also where there is no terminal, as in the log of a job


def _boxed(rows: Mapping[str, str]) -> str:
    label_width = max(len(label) for label in rows)
    columns = min(shutil.get_terminal_size((_MOST_COLUMNS + 1, 0)).columns - 1, _MOST_COLUMNS)
    room = max(columns - label_width - len("|    |"), _LEAST_TEXT)
    lines = []
    for label, text in rows.items():
        first, *more = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{label:{label_width}}  {first}", *(f"{'':{label_width}}  {line}" for line in more)]
    width = max(len(line) for line in lines)
    edge = f"+- {_TITLE} ".ljust(width + 3, "-") + "+\n"
    return edge + "".join(f"| {line:{width}} |\n" for line in lines) + "+" + "-" * (width + 2) + "+\n"
