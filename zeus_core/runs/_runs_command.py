"""`zeus-core runs`: the runs of many people in one catalogue, and their sums."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core._identity import printable
from zeus_core.cli.arguments import add_modes, path
from zeus_core.cli.electricity_arguments import add_electricity, electricity_from
from zeus_core.cli.text import complain, table, write
from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.files import write_atomically
from zeus_core.ports.site_defaults import site_electricity
from zeus_core.units import number_text
from zeus_core.validate import shown

if TYPE_CHECKING:
    import pyarrow

    from zeus_core.runs._catalogue import Catalogue
    from zeus_core.runs._counting import Counted

PLACE = "See what a run took", 21
SUMMARY = "Keep the runs of many people in a catalogue, and add them up"
EXAMPLE = "zeus-core runs sum /shared/catalogue --by user --month 2026-10"

_FORMAT = Document("zeus-core runs", 1, dict[str, Any])
_MOST_LISTED, _MOST_GAINS, _MOST_COMPLAINTS = 50, 10, 20
_MODES = {
    "add": ("add runs to a catalogue, which is made if there is none", "zeus-core runs add /shared/catalogue output"),
    "list": ("list the newest runs", "zeus-core runs list /shared/catalogue --month 2026-10"),
    "show": ("show one run", "zeus-core runs show /shared/catalogue 78b31245"),
    "sum": ("show energy, emissions, cost and savings, by group", EXAMPLE),
    "report": (
        "write a page on a month, and a table of its sums beside it",
        "zeus-core runs report /shared/catalogue october.html --month 2026-10",
    ),
    "export": (
        "write a table with the runs and their intervals on each device",
        "zeus-core runs export /shared/catalogue all.parquet",
    ),
}
_FORMATS = {"list": ("text", "json", "csv"), "show": ("text", "json"), "sum": ("text", "json", "csv", "prometheus")}
_MONTH = re.compile(r"\d{4}-\d{2}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of each mode."""
    parser.set_defaults(by=None, month=None)
    modes = add_modes(parser, _MODES)
    for mode in modes.values():
        mode.add_argument("catalogue", type=path, help="the folder of the catalogue")
    for name, argument, words, number in (
        ("add", "runs", "files of runs, or folders with any number of them", "+"),
        ("show", "run", "the name of the run, or its beginning", None),
        ("report", "page", "the page to write, FILE.html; the sums are written to FILE.csv", None),
        ("export", "table", "the table to write, FILE.parquet or FILE.csv", None),
    ):
        modes[name].add_argument(argument, nargs=number, help=words)
    modes["add"].add_argument("--ended", action="store_true", help="all have ended, so what was going on was killed")
    for name in ("sum", "report"):
        modes[name].add_argument(
            "--by",
            metavar="WHAT",
            help="user, job, project, cluster, namespace, gpu, state, run, day, month or tag:NAME",
        )
        add_electricity(modes[name].add_argument_group("emissions and cost", "in place of what runs have recorded"))
    for name in ("list", "sum", "report"):
        modes[name].add_argument(
            "--month", metavar="2026-10", help="what began in this month, in UTC or the zone in TZ"
        )
    for name, formats in _FORMATS.items():
        modes[name].add_argument("--format", choices=formats, default="text", help="form of the output (text)")


def execute(arguments: argparse.Namespace) -> int:
    """Do what was asked for; 1 if files were left out."""
    if arguments.month is not None and not _MONTH.fullmatch(arguments.month):
        raise UsageError(f"--month is {arguments.month!r}; give it as 2026-10")
    if arguments.by is not None:
        from zeus_core.runs._counting import check_group

        check_group(arguments.by)
    from zeus_core.runs._catalogue import Catalogue

    catalogue = Catalogue(arguments.catalogue)
    if arguments.mode == "add":
        places = [Path(place) for place in arguments.runs]
        added = catalogue.add(places, arguments.ended)
        text = f"{added} runs added to {arguments.catalogue}"
    else:
        modes = {"list": _listed, "show": _shown, "sum": _summed, "report": _reported, "export": _exported}
        text = modes[arguments.mode](catalogue, arguments)
    write(text.rstrip("\n"), sys.stdout)
    complaints = list(dict.fromkeys(catalogue.complaints))
    for complaint in complaints[:_MOST_COMPLAINTS]:
        complain(f"zeus-core: left out: {printable(complaint)}")
    if len(complaints) > _MOST_COMPLAINTS:
        complain(f"zeus-core: left out: {len(complaints) - _MOST_COMPLAINTS} more")
    return 1 if complaints else 0


def _zone() -> tzinfo:
    """Return the zone of months, days and times: the one in the variable TZ, or else UTC."""
    import zoneinfo

    name = os.environ.get("TZ", "").removeprefix(":")
    try:
        return zoneinfo.ZoneInfo(name) if name else UTC
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        complain(f"zeus-core: TZ is {shown(name)}, which is not a zone such as Europe/Berlin; times are in UTC")
        return UTC


def _summed(catalogue: Catalogue, arguments: argparse.Namespace) -> str:
    from zeus_core.runs._counting import NEEDED, charge, column_of, counted, in_month
    from zeus_core.runs._run_rows import AMOUNTS
    from zeus_core.runs._sums_shown import COLUMNS, cells, charged_at, grouped_sums, notes, prometheus_text

    by, electricity, zone = arguments.by, electricity_from(arguments, site_electricity(os.environ)), _zone()
    of_group = [] if by is None else [column_of(by)]
    rows = catalogue.table(list(dict.fromkeys([*NEEDED, *AMOUNTS, "currency", "gpu", "job", *of_group])))
    known = counted(rows, zone)
    rows = rows if electricity is None else charge(rows, known, electricity)
    kept = None if arguments.month is None else in_month(rows, arguments.month, zone)
    groups = grouped_sums(rows, known, by, kept)
    _say_if_unused(by, groups)
    if arguments.format == "json":
        return json.dumps(_FORMAT.to_json({"by": by, "month": arguments.month, "sums": groups}), indent=2)
    if arguments.format == "csv":
        return _csv_of_sums({by or "": groups})
    if arguments.format == "prometheus":
        return prometheus_text(by, groups)
    if not groups:
        return "The catalogue has no runs" + (f" of {arguments.month}." if arguments.month else ".")
    columns = [by or "", *COLUMNS]
    text = table([columns, *(cells(name, amounts) for name, amounts in groups.items())], "<" + ">" * len(COLUMNS))
    lacking = [note for name, amounts in groups.items() for note in notes(name, amounts)]
    lacking += [] if electricity is None else [f"{charged_at(electricity)}."]
    return "\n".join([text, *lacking, *_gain_lines(rows, known, kept)])


def _say_if_unused(by: str | None, groups: Mapping[str, Any]) -> None:
    if by is not None and by.startswith("tag:") and list(groups) == [""]:
        complain(f"zeus-core: no run has the tag {shown(by.removeprefix('tag:'))}")


def _gain_lines(rows: pyarrow.Table, known: Counted, kept: Any) -> list[str]:
    from zeus_core.runs._counting import gains
    from zeus_core.runs._sums_shown import GAIN_COLUMNS, gain_cells

    found = [gain_cells(gain, known.zone) for gain in gains(rows, known, kept, _MOST_GAINS)]
    return ["", "Runs that would gain most:", table([GAIN_COLUMNS, *found], "<>><<<<<")] if found else []


def _runs(catalogue: Catalogue, month: str | None, zone: tzinfo) -> list[dict[str, Any]]:
    """Return the rows of the runs, the latest file of each; the newest first."""
    from zeus_core.runs._counting import rows_of_runs

    rows = rows_of_runs(catalogue.table(), month, zone)
    return sorted(rows, key=lambda row: (-row["begin_ms"], row["run"]))


def _listed(catalogue: Catalogue, arguments: argparse.Namespace) -> str:
    from zeus_core.runs._sums_shown import kwh, moment_text

    zone = _zone()
    runs = _runs(catalogue, arguments.month, zone)
    names = ("run", "user", "job", "project", "cluster", "gpu", "state")
    columns = (*names, "began", "kWh")
    rows = [
        (
            *(run[name] for name in names),
            moment_text(run["begin_ms"], zone),
            number_text(kwh(run["whole_millijoules"])),
        )
        for run in runs
    ]
    if arguments.format == "json":
        return json.dumps(_FORMAT.to_json({"runs": runs}), indent=2)
    if arguments.format == "csv":
        return _csv([columns, *rows])
    more = [f"{len(rows) - _MOST_LISTED} more, in --format csv"] if len(rows) > _MOST_LISTED else []
    return "\n".join([table([columns, *rows[:_MOST_LISTED]], "<" * 8 + ">"), *more])


def _shown(catalogue: Catalogue, arguments: argparse.Namespace) -> str:
    from zeus_core.runs._run_rows import TEXTS
    from zeus_core.runs._sums_shown import kwh, moment_text, number

    wanted, zone = arguments.run, _zone()
    found = [run for run in _runs(catalogue, None, zone) if run["run"].startswith(wanted)]
    if len(found) != 1:
        many = f"{len(found)} runs" if found else "no run"
        raise UsageError(f"the catalogue has {many} whose name begins with {wanted!r}; see zeus-core runs list")
    (run,) = found
    if arguments.format == "json":
        return json.dumps(_FORMAT.to_json(run), indent=2)
    energies = {
        "energy": run["whole_millijoules"],
        "at low power": run["whole_low_millijoules"],
        "idle, between steps": run["idle_millijoules"],
        "of steps done twice": run["redone_millijoules"],
        "saved": run["saved_millijoules"],
    }
    lines = {
        **{name: run[name] for name in TEXTS if name != "currency"},
        "began": moment_text(run["begin_ms"], zone),
        "until": moment_text(run["end_ms"], zone),
        "GPU hours": number(run["whole_gpu_milliseconds"] / 3.6e6),
        **{name: f"{number(kwh(each))} kWh" for name, each in energies.items() if each},
        "tokens": f"{run['tokens']:,}" if run["tokens"] else "",
        "CO2 equivalent": f"{number(run['milligrams'] / 1e6)} kg" if run["charged_millijoules"] else "",
        "cost": f"{number(run['millionths'] / 1e6)} {run['currency']}" if run["priced_millijoules"] else "",
    }
    return table([(name, text) for name, text in lines.items() if text], "<<")


def _reported(catalogue: Catalogue, arguments: argparse.Namespace) -> str:
    """Write the page, and the sums that it shows, of all groups, beside it."""
    from zeus_core.runs._counting import NEEDED, column_of
    from zeus_core.runs._month_page import month_page, month_sums
    from zeus_core.runs._run_rows import AMOUNTS

    output, by = Path(arguments.page), arguments.by or "tag:team"
    if output.suffix != ".html":
        raise UsageError(f"the page is {arguments.page!r}; name it FILE.html; the sums are written to FILE.csv")
    wanted = (*NEEDED, *AMOUNTS, "currency", "gpu", "job", "state", column_of(by))
    rows = catalogue.table(list(dict.fromkeys(wanted)))
    electricity = electricity_from(arguments, site_electricity(os.environ))
    found = month_sums(rows, arguments.month, by, _zone(), electricity)
    _say_if_unused(arguments.by, found.tables[by])
    if not found.whole:
        raise UsageError(f"the catalogue {arguments.catalogue} has no run that began in {arguments.month or 'it'}")
    month = "all months" if arguments.month is None else f"{datetime.strptime(arguments.month, '%Y-%m'):%B %Y}"
    page = month_page(found, month, by, len(catalogue.complaints))
    _write(output, page.encode())
    _write(output.with_suffix(".csv"), _csv_of_sums({"": {"all": found.whole}, **found.tables}).encode())
    return f"{found.whole['runs']} runs reported in {output}, and its sums in {output.with_suffix('.csv')}"


def _exported(catalogue: Catalogue, arguments: argparse.Namespace) -> str:
    """Write all rows, with whether each is of the latest file of its run, and whether its energy counts."""
    from zeus_core.runs._counting import with_counts

    output = Path(arguments.table)
    if output.suffix not in (".parquet", ".csv"):
        raise UsageError(f"the table is {arguments.table!r}; name it FILE.parquet or FILE.csv")
    rows = with_counts(catalogue.table())
    content = io.BytesIO()
    if output.suffix == ".csv":
        content.write(_csv([rows.column_names, *zip(*rows.to_pydict().values(), strict=True)]).encode())
    else:
        import pyarrow.parquet

        pyarrow.parquet.write_table(rows, content)
    _write(output, content.getvalue())
    return f"{rows.num_rows} rows exported to {output}"


def _write(output: Path, content: bytes) -> None:
    try:
        write_atomically(output, content)
    except (OSError, ValueError) as error:
        raise UsageError(f"{output} cannot be written: {error}") from error


def _csv_of_sums(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return a row for each group: what it is by, where there are several tables, its name, and its sums."""
    rows: list[Sequence[Any]] = []
    for by, groups in tables.items():
        for name, amounts in groups.items():
            row = {**amounts, "cost": json.dumps(amounts["cost"])}
            head = {"by": by, "name": name} if len(tables) > 1 else {by: name}
            rows += [] if rows else [(*head, *row)]
            rows.append((*head.values(), *row.values()))
    return _csv([[_harmless(cell) for cell in row] for row in rows] or [tuple(tables)])


def _harmless(cell: Any) -> Any:
    """Return a cell of which no spreadsheet computes anything, as of a tag that begins with "="."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
