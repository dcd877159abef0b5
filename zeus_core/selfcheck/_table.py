"""The report of a self-check, as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from zeus_core._documents import JsonFormat
from zeus_core.selfcheck._bench import Finding
from zeus_core.selfcheck._selfcheck import CheckResult

FORMAT = JsonFormat("zeus-core selfcheck", 1)


def json_fields(machine: Mapping[str, Any], results: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the fields of the JSON document."""
    return {"machine": dict(machine), "checks": [asdict(result) for result in results]}


def markdown_heading(machine: Mapping[str, Any]) -> str:
    """Return the title, and what was checked when."""
    simulated = ", simulated: no number here was measured on hardware" if machine["is_simulated"] else ""
    quick = " Quick mode: too short for results that count." if machine["is_quick"] else ""
    changes = "Settings were changed, and restored." if machine["changes_allowed"] else "No setting was changed."
    driver = machine["driver"] or "unknown"
    return (
        f"# Self-check of {machine['device']}{simulated}\n\n{machine['date']}, driver {driver}, "
        f"zeus-core {machine['zeus_core']}, Python {machine['python']}, {machine['host']}. {changes}{quick}"
    )


def markdown_section(result: CheckResult) -> str:
    """Return the table of one check."""
    return "\n".join(_section(result))


def _section(result: CheckResult) -> Iterator[str]:
    yield f"\n## {result.title}\n"
    if result.findings:
        yield "| quantity | value | holds | |"
        yield "|---|---:|---|---|"
        yield from map(_row, result.findings)
    if result.not_measured_because is not None:
        yield f"{chr(10) if result.findings else ''}Not measured: {result.not_measured_because}."


def _row(finding: Finding) -> str:
    holds = {None: "", True: "yes", False: "**no**"}[finding.holds]
    cells = (finding.quantity, _shown(finding), holds, finding.note)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _shown(finding: Finding) -> str:
    if finding.value is None:
        return "not measured"
    value = finding.value if isinstance(finding.value, str) else f"{finding.value:.4g}"
    return f"{value} {finding.unit}".strip()
