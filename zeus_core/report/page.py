"""A page: one HTML file that needs nothing else, in light and dark, for screens and for paper.

Pages are made of templates. Every value in them is escaped unless it is `Html`: names of runs, machines and losses are
texts of others. The skeleton and the style are `page.html`, beside this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from zeus_core.report.run_sections import Section


class Html(str):
    """A text that is HTML already, and is not escaped again."""

    __slots__ = ()


def fill(template: str, **values: object) -> Html:
    """Fill in the `$names` of a template: texts are escaped, HTML is not, and the members of a list are joined."""
    return Html(Template(template).substitute({name: _html(value) for name, value in values.items()}))


def _html(value: object) -> str:
    if isinstance(value, Html):
        return value
    return "".join(map(_html, value)) if isinstance(value, list) else escape(str(value))


def page(title: str, body: str, style: str = "") -> str:
    """Return a page.

    Args:
        title: Its title, as plain text.
        body: Its content, in HTML.
        style: Rules beside those of all pages.
    """
    skeleton = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return fill(skeleton, title=title, body=Html(body), style=Html(style))


def card(label: str, text: str, more: str = "") -> Html:
    """Return a card: the number, its unit, and below them how far it can be off."""
    value, plus_minus, rest = text.partition(" ±")
    off, _, unit = rest.partition(" ")
    detail = f"±{off} {unit} {more}".strip() if plus_minus else more
    return fill(
        '<div class="card"><span>$label</span><b>$number</b><span>$detail</span></div>',
        label=label,
        number=f"{value} {unit}".strip(),
        detail=detail,
    )


def section_html(section: Section, picture: str = "") -> Html:
    """Return a section: its heading, its text, a picture in HTML, and its table."""
    return fill(
        '<section id="$name"><h3>$title</h3>$text$picture$table</section>',
        name=section.name,
        title=section.title,
        text=fill("<p>$text</p>", text=section.text) if section.text else "",
        picture=Html(picture),
        table=_table(section.columns, section.rows),
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    if not rows:
        return Html()
    heads = [fill("<th>$text</th>", text=column) for column in columns]
    lines = [
        fill(
            "<tr$kind>$cells</tr>",
            kind=Html(" class=total" if row[0] == "total" else ""),
            cells=[fill("<td>$text</td>", text=cell) for cell in row],
        )
        for row in rows
    ]
    return fill(
        '<div class="wide"><table$kind>$head<tbody>$lines</tbody></table></div>',
        kind=Html(' class="grid"' if len(columns) > 3 else ""),
        head=fill("<thead><tr>$heads</tr></thead>", heads=heads) if any(columns) else "",
        lines=lines,
    )
