"""The result of a training for people: a few labelled lines in a box, shown once at its end."""

from __future__ import annotations

import sys
from collections.abc import Mapping

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


def _boxed(rows: Mapping[str, str]) -> str:
    label_width = max(len(label) for label in rows)
    lines = [f"{label:{label_width}}  {text}" for label, text in rows.items()]
    width = max(len(line) for line in lines)
    edge = f"+- {_TITLE} ".ljust(width + 3, "-") + "+\n"
    return edge + "".join(f"| {line:{width}} |\n" for line in lines) + "+" + "-" * (width + 2) + "+\n"
