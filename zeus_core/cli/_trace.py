"""`zeus-core trace`: merge the traces of ranks, add joules to a profiler's trace, and show where the energy went."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import count_or_zero, path
from zeus_core.cli.text import NOT_MEASURED, complain, table, write
from zeus_core.errors import UsageError
from zeus_core.units import duration_text, energy_text, number_text

if TYPE_CHECKING:
    from zeus_core.tracing.facts import PhaseEnergy, RankFacts

SUMMARY = "Merge traces, add joules to one of torch.profiler, or sum one up"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", title="actions")
    merging = actions.add_parser("merge", help="bring all ranks together in one file, their clocks aligned")
    merging.add_argument("source", type=path, nargs="+", metavar="FOLDER", help="of the run, or files of ranks")
    _add_output(merging)
    adding = actions.add_parser("add", help="add joules to the ranges of a trace of torch.profiler")
    adding.add_argument("energy", type=path, metavar="ENERGY_TRACE", help="that of the rank, such as trace-0.json.gz")
    adding.add_argument("profile", type=path, metavar="PROFILER_TRACE", help="as export_chrome_trace has written it")
    adding.add_argument(
        "--rank", type=count_or_zero, metavar="N", help="that was profiled, if the profiler did not say"
    )
    _add_output(adding)
    showing = actions.add_parser("show", help="print time and energy by activity")
    showing.add_argument("source", type=path, nargs="+", metavar="TRACE", help="files, or the folder of the run")
    showing.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=path, required=True, metavar="FILE", help="the file to write, such as all.json.gz"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Execute the action."""
    return {"merge": _merge, "add": _add, "show": _show}[arguments.action](arguments)


def _merge(arguments: argparse.Namespace) -> int:
    from zeus_core.tracing.merge import merge
    from zeus_core.tracing.trace_file import write_trace

    merged = merge(_files(arguments.source))
    for note in merged.notes:
        complain(f"zeus-core: {note}")
    size = _written(arguments.output, lambda file: write_trace(file, merged.trace))
    ranks, skew = merged.trace.ranks, merged.trace.skew_seconds
    hosts = len({rank.host for rank in ranks})
    aligned = "" if skew is None else f", clocks aligned within {number_text(1000 * skew, 2)} ms"
    write(
        f"{len(ranks)} ranks on {hosts} machines{aligned}: {arguments.output}, {size / 1e6:.1f} MB; open it at "
        "https://ui.perfetto.dev or in chrome://tracing",
        sys.stdout,
    )
    return 0


def _add(arguments: argparse.Namespace) -> int:
    from zeus_core.tracing.ranges.range_joules import add_energy, rank_of
    from zeus_core.tracing.trace_file import read_document, read_trace, write_document

    document = read_document(arguments.profile)
    added = add_energy(rank_of(read_trace(arguments.energy).ranks, document, arguments.rank), document)
    for note in added.notes:
        complain(f"zeus-core: {note}")
    _written(arguments.output, lambda file: write_document(file, added.document, added.events))
    rows = [
        (
            row.name,
            str(row.count),
            number_text(row.seconds),
            energy_text(row.energy_joules, row.uncertainty_joules),
            number_text(row.energy_joules / row.count),
            number_text(row.energy_joules / row.seconds) if row.seconds > 0 else NOT_MEASURED,
        )
        for row in added.rows
    ]
    header = ("range", "count", "seconds", "energy", "J each", "watts")
    write(table([header, *rows], "<>>>>>"), sys.stdout)
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
    for note in _notes(ranks):
        write(note, sys.stdout)
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


def _notes(ranks: Sequence[RankFacts]) -> list[str]:
    size = ranks[0].world_size
    here = {rank.rank for rank in ranks}
    missing = [str(rank) for rank in range(size) if rank not in here]
    return [f"Without rank {', '.join(missing)}, of which no trace was given."] if missing and size < 1000 else []


def _files(sources: Sequence[Path]) -> list[Path]:
    from zeus_core.tracing.merge import traces_in

    return [file for source in sources for file in (traces_in(source) if source.is_dir() else [source])]


def _written(file: Path, write_file: Callable[[Path], int]) -> int:
    try:
        return write_file(file)
    except OSError as error:
        raise UsageError(f"--output is {str(file)!r}, which cannot be written: {error}") from error
