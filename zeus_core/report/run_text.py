"""A report on runs as Markdown, as JSON, and as a line for a paper. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zeus_core._documents import JsonFormat
from zeus_core.codec import encode
from zeus_core.report.many_runs import are_many, runs_in_full, table_of
from zeus_core.report.run_metrics import Quantity, metrics_of, unit_of
from zeus_core.report.run_page import comparison_rows, quantity_text
from zeus_core.report.run_sections import (
    Section,
    energy_line,
    hardware,
    moment,
    saving_line,
    sections_of,
    steps_text,
    unrecorded_line,
)
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import duration_text

_FORMAT = JsonFormat("zeus-core report", 1)


def runs_markdown(runs: Sequence[tuple[str, RunRecord]], notes: Sequence[tuple[str, bool]] = ()) -> str:
    """Return the report as Markdown; of many runs, a few are shown in full: see `runs_in_full`."""
    title = runs[0][0] if len(runs) == 1 else f"{len(runs)} runs"
    lines = [f"# Energy of {title}", *(f"**{text}**" for text, _ in notes)]
    if are_many(runs):
        lines.append(markdown_table(*table_of(runs)))
    elif len(runs) > 1:
        lines.append(markdown_table(("", *(name for name, _ in runs)), comparison_rows(runs)))
    for number, reason in runs_in_full(runs, notes).items():
        name, run = runs[number]
        level = "##" if len(runs) == 1 else "###"
        lines += [] if len(runs) == 1 else [f"## {name}"]
        lines += [f"{reason[0].upper()}{reason[1:]}."] if reason else []
        began = moment(run.parts[0].begun_at_seconds)
        more = f" {unrecorded_line(run)}".rstrip()
        lines.append(f"{energy_line(run)}{more} on {hardware(run)}, {steps_text(run)}, began {began}.")
        for section in sections_of(run):
            if section.name != "power":  # a picture
                lines += _section(section, level)
    return "\n\n".join(lines)


def _section(section: Section, level: str) -> list[str]:
    lines = [f"{level} {section.title}"] + ([section.text] if section.text else [])
    return lines + ([markdown_table(section.columns, section.rows)] if section.rows else [])


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def runs_json(
    runs: Sequence[tuple[str, RunRecord]],
    notes: Sequence[tuple[str, bool]] = (),
    statement: Mapping[str, Any] | None = None,
) -> str:
    """Return the numbers by name, all that the files of the runs hold, and the fields of their statement, as JSON."""
    fields = {
        "notes": [text for text, _ in notes],
        "runs": [
            {"name": name, "metrics": quantities_to_json(metrics_of(run)), "record": _without_identity(run)}
            for name, run in runs
        ],
        "statement": statement,
    }
    return json.dumps(_FORMAT.document(fields), indent=2)


def runs_csv(runs: Sequence[tuple[str, RunRecord]]) -> str:
    """Return a table of comma-separated values, with a line for each number of each run; an unknown end is empty."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("run", "name", "value", "low", "high", "unit"))
    for run_name, run in runs:
        for name, (value, low, high) in metrics_of(run).items():
            lines.writerow((run_name, name, value, low, "" if high == math.inf else high, unit_of(name)))
    return text.getvalue()


def _without_identity(run: RunRecord) -> Any:
    return encode(replace(run, parts=tuple(replace(part, identity=None) for part in run.parts)))


def quantities_to_json(quantities: Mapping[str, Quantity]) -> dict[str, dict[str, Any]]:
    """Return numbers with their intervals, in JSON types; an end that is not known is null."""
    return {
        name: {
            "value": known.value,
            "low": known.low,
            "high": known.high if known.high < float("inf") else None,
            "unit": unit_of(name),
        }
        for name, known in quantities.items()
    }


def run_line(run: RunRecord) -> str:
    """Return a sentence for a paper."""
    metrics = metrics_of(run)
    simulated = any(device.is_simulated for device in run.latest.devices)
    more = f" {unrecorded_line(run)}".rstrip()
    what = f"Training for {run.latest.step} steps" if run.latest.step else "The run"
    text = f"{what} took {energy_line(run)}{more} on {hardware(run)} ({duration_text(run.account.total.seconds)}"
    text += f", mean power {quantity_text('power_w', metrics['power_w'], run)}" if "power_w" in metrics else ""
    text += ")"
    per = next((name for name in ("energy_per_token_j", "energy_per_sample_j") if name in metrics), None)
    text += "" if per is None else f", {quantity_text(per, metrics[per], run)} per {per.split('_')[2]}"
    saving = saving_line(run)
    text += "" if saving is None or run.saving_fraction is None else f"; the chosen setting saved {saving}"
    text += f"; {quantity_text('co2_eq_g', metrics['co2_eq_g'], run)} CO2 equivalent" if "co2_eq_g" in metrics else ""
    how = "simulated by" if simulated else "measured by"
    return f"{text}; GPUs only, {how} zeus-core {run.latest.versions.get('zeus-core', '')}".rstrip() + "."
