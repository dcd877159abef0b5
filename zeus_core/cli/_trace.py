"""`zeus-core trace`: merge the traces of ranks, and show where the energy went."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import add_modes, check_exists, path
from zeus_core.cli.text import NOT_MEASURED, complain, table, write
from zeus_core.errors import UsageError
from zeus_core.units import duration_text, energy_text, number_text

if TYPE_CHECKING:
    from zeus_core.tracing.facts import PhaseEnergy

PLACE = "See what a run took", 22
SUMMARY = "Merge the traces of ranks, or sum them up"
EXAMPLE = "zeus-core trace merge output -o all.json.gz"

_MODES = {
    "merge": ("bring all ranks together in one file, their clocks aligned", EXAMPLE),
    "show": ("print time and energy by activity", "zeus-core trace show output"),
}
_SHOWN_RANKS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of each mode."""
    modes = add_modes(parser, _MODES)
    for name, metavar in (("merge", "FOLDER"), ("show", "TRACE")):
        modes[name].add_argument(
            "source", type=path, nargs="+", metavar=metavar, help="the output folder of a run, or its trace files"
        )
    modes["merge"].add_argument(
        "-o", "--output", type=path, required=True, metavar="FILE", help="the file to write, such as all.json.gz"
    )
    modes["show"].add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def execute(arguments: argparse.Namespace) -> int:
    """Merge or show."""
    return {"merge": _merge, "show": _show}[arguments.mode](arguments)


def _merge(arguments: argparse.Namespace) -> int:
    from zeus_core.tracing.merge import merge
    from zeus_core.tracing.trace_file import write_trace

    merged = merge(_files(arguments.source))
    for note in merged.notes:
        complain(f"zeus-core: {note}")
    try:
        size = write_trace(arguments.output, merged.trace)
    except OSError as error:
        raise UsageError(f"--output is {str(arguments.output)!r}, which cannot be written: {error}") from error
    ranks, skew = merged.trace.ranks, merged.trace.skew_seconds
    hosts = len({rank.host for rank in ranks})
    aligned = "" if skew is None else f", clocks aligned within {number_text(1000 * skew, 2)} ms"
    write(
        f"{len(ranks)} ranks on {hosts} machines{aligned}: {arguments.output}, {size / 1e6:.1f} MB; open it at "
        "https://ui.perfetto.dev or in chrome://tracing",
        sys.stdout,
    )
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from zeus_core.codec import encode
    from zeus_core.tracing.facts import phases_of, total_of
    from zeus_core.tracing.trace_file import read_trace

    ranks = [rank for file in _files(arguments.source) for rank in read_trace(file).ranks]
    phases, total = phases_of(ranks), total_of(ranks)
    if arguments.json:
        listing = {"ranks": len(ranks), "phases": encode(dict(phases)), "total": encode(total)}
        write(json.dumps({"format": "zeus-core trace phases", "version": 1, **listing}, indent=2), sys.stdout)
        return 0
    rows = [_row(name, phase, total) for name, phase in phases.items()]
    rows += [] if total is None else [_row("total", total, total)]
    write(table([("activity", "seconds", "energy", "share", "watts"), *rows], "<>>>>"), sys.stdout)
    missing = sorted(set(range(ranks[0].world_size)) - {rank.rank for rank in ranks})
    if missing:
        more = ", ..." if len(missing) > _SHOWN_RANKS else ""
        listed = ", ".join(map(str, missing[:_SHOWN_RANKS])) + more
        write(f"Without rank {listed}, of which no trace was given.", sys.stdout)
    return 0


def _row(name: str, phase: PhaseEnergy, total: PhaseEnergy | None) -> tuple[str, ...]:
    joules = phase.measured.energy_joules or 0.0
    lost = f" (lost: {duration_text(phase.lost_seconds)})" if phase.lost_seconds > 0 else ""
    of_all = None if total is None else total.measured.energy_joules
    return (
        name,
        number_text(phase.seconds),
        energy_text(joules, phase.measured.uncertainty_joules) + lost,
        f"{joules / of_all:.1%}" if of_all else NOT_MEASURED,
        number_text(joules / phase.seconds) if phase.seconds > 0 else NOT_MEASURED,
    )


def _files(sources: Sequence[Path]) -> list[Path]:
    from zeus_core.tracing.merge import traces_in

    for source in sources:
        if not source.is_dir():
            check_exists(source)
    return [file for source in sources for file in (traces_in(source) if source.is_dir() else [source])]
