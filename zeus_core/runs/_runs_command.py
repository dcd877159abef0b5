"""`zeus-core runs`: the runs of many people in one catalogue, and their sums."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core._documents import JsonFormat
from zeus_core.cli.arguments import path
from zeus_core.cli.text import complain, table, write
from zeus_core.errors import UsageError
from zeus_core.files import write_atomically
from zeus_core.units import amount_text, number_text

if TYPE_CHECKING:
    import pyarrow

    from zeus_core.runs._catalogue import Catalogue
    from zeus_core.runs._counting import Counted

SUMMARY = "Keep the runs of many people in a catalogue, and add them up"

_FORMAT = JsonFormat("zeus-core runs", 1)
_MILLIJOULES_OF_A_KWH = 3_600_000_000
_MOST_LISTED, _MOST_GAINS, _MOST_COMPLAINTS = 50, 10, 20
_MONTH = re.compile(r"\d{4}-\d{2}")
_COLUMNS = ("runs", "GPU hours", "kWh", "Wh/token", "kgCO2e", "cost", "saved kWh", "controlled", "idle kWh")
_NO_NAME = "(none)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("mode", choices=("add", "list", "show", "sum", "export"), help="what to do")
    parser.add_argument("catalogue", type=path, help="the folder of the catalogue, which add makes")
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="of add: files of runs, or folders with any number; of show: its name"
    )
    parser.add_argument(
        "--by",
        metavar="WHAT",
        help="of sum: user, job, project, cluster, namespace, gpu, state, day, month or tag:NAME",
    )
    parser.add_argument("--month", metavar="2026-10", help="of list and sum: what began in this month (UTC)")
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="of list and sum")
    parser.add_argument("--output", type=path, metavar="FILE", help="of export: FILE.parquet or FILE.csv")


def execute(arguments: argparse.Namespace) -> int:
    """Do what was asked for; 1 if files were left out."""
    if bool(arguments.runs) is not (arguments.mode in ("add", "show")):
        raise UsageError("add needs files or folders of runs, show the name of a run, and list, sum and export none")
    if arguments.month is not None and not _MONTH.fullmatch(arguments.month):
        raise UsageError(f"--month is {arguments.month!r}; give it as 2026-10")
    from zeus_core.runs._catalogue import Catalogue

    catalogue = Catalogue(arguments.catalogue)
    if arguments.mode == "add":
        added = catalogue.add([Path(place) for place in arguments.runs])
        text = f"{added} runs added to {arguments.catalogue}"
    else:
        modes = {"list": _listed, "show": _shown, "sum": _summed, "export": _exported}
        text = modes[arguments.mode](catalogue, arguments)
    write(text.rstrip("\n"), sys.stdout)
    for complaint in catalogue.complaints[:_MOST_COMPLAINTS]:
        complain(f"zeus-core: left out: {complaint}")
    if len(catalogue.complaints) > _MOST_COMPLAINTS:
        complain(f"zeus-core: left out: {len(catalogue.complaints) - _MOST_COMPLAINTS} more")
    return 1 if catalogue.complaints else 0


def _summed(catalogue: Catalogue, arguments: argparse.Namespace) -> str:
    from zeus_core.runs._counting import GROUPS, NEEDED, by_currency, counted, in_month, sums
    from zeus_core.runs._run_rows import AMOUNTS

    by = arguments.by
    if by is not None and by not in GROUPS and not by.startswith("tag:"):
        raise UsageError(f"--by is {by!r}; it must be one of {', '.join(GROUPS)}, or tag:NAME")
    of_group = [] if by is None or by in ("day", "month") else ["tags" if by.startswith("tag:") else by]
    rows = catalogue.table(list(dict.fromkeys([*NEEDED, *AMOUNTS, "currency", "gpu", *of_group])))
    known = counted(rows)
    kept = None if arguments.month is None else in_month(rows, arguments.month)
    groups: dict[str, dict[str, Any]] = {**sums(rows, known, by, kept)}
    names = ("millionths", "off_millionths", "priced_millijoules")
    costs = {unit: sums(rows, known, by, mask, names) for unit, mask in by_currency(rows, kept).items()}
    for name, amounts in groups.items():
        amounts["cost"] = {
            unit: [found[name]["millionths"], found[name]["off_millionths"]]
            for unit, found in costs.items()
            if name in found and found[name]["priced_millijoules"]
        }
        del amounts["millionths"], amounts["off_millionths"]  # of all currencies
    if arguments.format == "json":
        return json.dumps(_FORMAT.document({"by": by, "month": arguments.month, "sums": groups}), indent=2)
    if arguments.format == "csv":
        costs_of = [{**amounts, "cost": json.dumps(amounts["cost"])} for amounts in groups.values()]
        columns = [by or "", *(costs_of[0] if costs_of else ())]
        return _csv([columns, *([name, *row.values()] for name, row in zip(groups, costs_of, strict=True))])
    cells = [_cells(name or _NO_NAME, amounts) for name, amounts in groups.items()]
    columns = [by or "", *_COLUMNS]
    notes = [note for name, amounts in groups.items() for note in _notes(name, amounts)]
    text = table([columns, *cells], "<" + ">" * (len(columns) - 1))
    return "\n".join([text, *notes, *_gain_lines(rows, known, kept)])


def _cells(name: str, amounts: Mapping[str, Any]) -> tuple[str, ...]:
    """Format sums for people; what is not known is empty, not 0."""
    grams, off_grams = amounts["milligrams"], amounts["off_milligrams"]
    per_token = ""
    if amounts["tokens"]:
        low, high = (
            (amounts["token_millijoules"] + sign * amounts["off_token_millijoules"]) / 3.6e6 / amounts["tokens"]
            for sign in (-1, 1)
        )
        per_token = amount_text((low + high) / 2, (high - low) / 2, "")
    off = _kwh(amounts["off_millijoules"])
    more = _kwh(amounts["off_millijoules"] + amounts["more_millijoules"])
    more = "?" if amounts["unbounded"] or amounts["lost_gpu_milliseconds"] else more
    energy = f"{_kwh(amounts['millijoules'])} " + (f"±{off}" if more == off else f"-{off}/+{more}")
    return (
        name,
        str(amounts["runs"]),
        number_text(amounts["gpu_milliseconds"] / 3.6e6),
        energy,
        per_token,
        amount_text(grams / 1e6, off_grams / 1e6, "") if amounts["charged_millijoules"] else "",
        ", ".join(amount_text(each / 1e6, off / 1e6, unit) for unit, (each, off) in amounts["cost"].items()),
        f"{_kwh(amounts['saved_millijoules'])} ±{_kwh(amounts['off_saved_millijoules'])}"
        if amounts["controlled"]
        else "",
        f"{amounts['controlled'] / amounts['runs']:.0%}" if amounts["runs"] else "",
        _kwh(amounts["idle_millijoules"]),
    )


def _kwh(millijoules: int) -> str:
    return number_text(millijoules / _MILLIJOULES_OF_A_KWH)


def _notes(name: str, amounts: Mapping[str, Any]) -> list[str]:
    where = name or _NO_NAME
    notes = []
    if amounts["lost_gpu_milliseconds"]:
        notes.append(
            f"{where}: the energy of {number_text(amounts['lost_gpu_milliseconds'] / 3.6e6)} GPU hours was not measured"
        )
    if amounts["milligrams"] and amounts["charged_millijoules"] < amounts["millijoules"]:
        notes.append(f"{where}: the emissions are those of {_kwh(amounts['charged_millijoules'])} kWh")
    if amounts["cost"] and amounts["priced_millijoules"] < amounts["millijoules"]:
        notes.append(f"{where}: the cost is that of {_kwh(amounts['priced_millijoules'])} kWh")
    return notes


def _gain_lines(rows: pyarrow.Table, known: Counted, kept: Any) -> list[str]:
    from zeus_core.runs._counting import gains

    lines = [
        f"  {run}  {gpu}  {_kwh(gain)} kWh: {why}" for run, gpu, gain, why in gains(rows, known, kept, _MOST_GAINS)
    ]
    return ["Runs that would gain most:", *lines] if lines else []


def _runs(catalogue: Catalogue, month: str | None) -> list[dict[str, Any]]:
    """Return the rows of the runs, the latest file of each; the newest first."""
    from zeus_core.runs._counting import rows_of_runs

    rows = rows_of_runs(catalogue.table(), month)
    return sorted(rows, key=lambda row: (-row["begin_ms"], row["run"]))


def _listed(catalogue: Catalogue, arguments: argparse.Namespace) -> str:
    runs = _runs(catalogue, arguments.month)
    names = ("run", "user", "job", "project", "cluster", "gpu", "state")
    columns = (*names, "began", "kWh")
    rows = [(*(run[name] for name in names), _moment(run["begin_ms"]), _kwh(run["whole_millijoules"])) for run in runs]
    if arguments.format == "json":
        return json.dumps(_FORMAT.document({"runs": runs}), indent=2)
    if arguments.format == "csv":
        return _csv([columns, *rows])
    more = [f"{len(rows) - _MOST_LISTED} more, in --format csv"] if len(rows) > _MOST_LISTED else []
    return "\n".join([table([columns, *rows[:_MOST_LISTED]], "<" * 8 + ">"), *more])


def _shown(catalogue: Catalogue, arguments: argparse.Namespace) -> str:
    wanted = arguments.runs[0]
    found = [run for run in _runs(catalogue, None) if run["run"].startswith(wanted)]
    if len(found) != 1:
        raise UsageError(f"{len(found)} runs of the catalogue are named {wanted!r}; see zeus-core runs list")
    return json.dumps(_FORMAT.document(found[0]), indent=2)


def _exported(catalogue: Catalogue, arguments: argparse.Namespace) -> str:
    """Write all rows, with whether each is of the latest file of its run, and whether its energy counts."""
    from zeus_core.runs._counting import with_counts

    output = arguments.output
    if output is None or output.suffix not in (".parquet", ".csv"):
        raise UsageError("export needs --output FILE.parquet or FILE.csv")
    rows = with_counts(catalogue.table())
    content = io.BytesIO()
    if output.suffix == ".csv":
        content.write(_csv([rows.column_names, *zip(*rows.to_pydict().values(), strict=True)]).encode())
    else:
        import pyarrow.parquet

        pyarrow.parquet.write_table(rows, content)
    try:
        write_atomically(output, content.getvalue())
    except (OSError, ValueError) as error:
        raise UsageError(f"--output is {str(output)!r}, which cannot be written: {error}") from error
    return f"{rows.num_rows} rows exported to {output}"


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1e3, timezone.utc).strftime("%Y-%m-%d %H:%M")


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
