"""Extension of griffe: tables of docstrings, which people read as they stand, become Markdown for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

_RULE = re.compile(r" *=+(?:  +=+)+ *")


class DocstringTables(griffe.Extension):
    """Rewrites the tables between two lines of `====  ====`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite those of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = with_markdown_tables(obj.docstring.value)


def with_markdown_tables(text: str) -> str:
    """Return a docstring with its tables in Markdown. Their columns are those of the line above them."""
    lines: list[str] = []
    columns: list[slice] | None = None
    for line in text.splitlines():
        if not _RULE.fullmatch(line):
            lines.append(line if columns is None else _row(line[part].strip() for part in columns))
        elif columns is None:
            begins = [match.start() for match in re.finditer("=+", line)]
            columns = [slice(begin, end) for begin, end in zip(begins, [*begins[1:], None], strict=True)]
            lines += [_row("" for _ in columns), _row("---" for _ in columns)]
        else:
            columns = None
    return "\n".join(lines)


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
