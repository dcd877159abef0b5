"""A report on runs as text (Markdown), as JSON, and as comma-separated values. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zeus_core.codec import encode
from zeus_core.documents import Document
from zeus_core.report.many_runs import are_many, overview, side_by_side
from zeus_core.report.run_lines import Runs, energy_line, hardware, moment, steps_text, unrecorded_line
from zeus_core.report.run_metrics import metrics_of, unit_of
from zeus_core.report.run_sections import Section, sections_of
from zeus_core.training.record.run_records import RunRecord

_FORMAT = Document("zeus-core report", 1, dict[str, Any])


def runs_markdown(runs: Runs, notes: Sequence[tuple[str, bool]] = ()) -> str:
    """Return the report as Markdown; of many runs, it is a table."""
    title = runs[0][0] if len(runs) == 1 else f"{len(runs)} runs"
    lines = [f"# Energy of {title}", *(f"**{text}**" for text, _ in notes)]
    if len(runs) > 1:
        table = overview(runs) if are_many(runs) else side_by_side(runs)
        lines.append(markdown_table(table.columns, table.rows))
    for name, run in () if are_many(runs) else runs:
        lines += [] if len(runs) == 1 else [f"## {name}"]
        began = moment(run.parts[0].begun_at_seconds)
        more = f" {unrecorded_line(run)}".rstrip()
        lines.append(f"{energy_line(run)}{more} on {hardware(run)}, {steps_text(run)}, began {began}.")
        for section in sections_of(run):
            if section.name != "power":  # a picture
                lines += _section(section, "##" if len(runs) == 1 else "###")
    return "\n\n".join(lines)


def _section(section: Section, level: str) -> list[str]:
    lines = [f"{level} {section.title}"] + ([section.text] if section.text else [])
    return lines + ([markdown_table(section.columns, section.rows)] if section.rows else [])


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def runs_json(runs: Runs, notes: Sequence[tuple[str, bool]] = (), statement: Mapping[str, Any] | None = None) -> str:
    """Return the numbers by name, all that the files of the runs hold, and the fields of their statement, as JSON."""
    fields = {
        "notes": [text for text, _ in notes],
        "runs": [{"name": name, "metrics": _metrics(run), "record": _without_identity(run)} for name, run in runs],
        "statement": statement,
    }
    return json.dumps(_FORMAT.to_json(fields), indent=2)


def _metrics(run: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the numbers with their intervals; an end that is not known is null."""
    return {
        name: {"value": value, "low": low, "high": high if high < math.inf else None, "unit": unit_of(name, run)}
        for name, (value, low, high) in metrics_of(run).items()
    }


def _without_identity(run: RunRecord) -> Any:
    return encode(replace(run, parts=tuple(replace(part, identity=None) for part in run.parts)))


def runs_csv(runs: Runs) -> str:
    """Return a table of comma-separated values, with a line for each number of each run; an unknown end is empty."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("run", "name", "value", "low", "high", "unit"))
    for run_name, run in runs:
        for name, (value, low, high) in metrics_of(run).items():
            lines.writerow((run_name, name, value, low, "" if high == math.inf else high, unit_of(name, run)))
    return text.getvalue()
