"""`zeus-core report`: where the energy of runs went, for people, programs and model cards, and as a check for CI."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import path
from zeus_core.cli.electricity_arguments import add_electricity, electricity_from
from zeus_core.cli.moved import FORMATS as MOVED_FORMATS
from zeus_core.cli.text import complain, make_folder, write
from zeus_core.errors import UsageError
from zeus_core.files import write_atomically
from zeus_core.installed import SECTIONS, registered

if TYPE_CHECKING:
    from zeus_core.report.run_lines import Runs
    from zeus_core.report.run_sections import Section
    from zeus_core.training.record.run_records import RunRecord

PLACE = "See what a run took", 20
SUMMARY = "Report where the energy of runs went, and compare them"
EXAMPLE = "zeus-core report output --output report.html"

_FORMATS = ("text", "html", "json", "csv", "card")
_FORMAT_OF_SUFFIX = {"": "html", ".html": "html", ".md": "text", ".txt": "text", ".json": "json", ".csv": "csv"}
_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs", type=path, nargs="+", metavar="RUN", help="the output folder of a run, or its zeus-energy/run.json"
    )
    parser.add_argument(
        "--format",
        type=_format,
        choices=_FORMATS,
        help="text is Markdown; card is the energy of all runs together, for a model card or a paper; by default as "
        "the suffix of FILE says, or text",
    )
    parser.add_argument("--output", type=path, metavar="FILE", help="write to this file, in place of the terminal")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 1 if it holds for certain, such as 'energy_per_sample_j > 1.05 * baseline'; may be repeated",
    )
    parser.add_argument("--baseline", type=path, metavar="RUN", help="the run that --fail-if compares with")
    parser.add_argument("--location", metavar="PLACE", help="where the computers are, for a card or JSON")
    parser.add_argument("--training-type", choices=("pre-training", "fine-tuning"), help="for a card or JSON")
    add_electricity(parser)


def _format(text: str) -> str:
    """Say what to give in place of a format that went."""
    if text in MOVED_FORMATS:
        raise argparse.ArgumentTypeError(f"there is no format {text!r}; {MOVED_FORMATS[text]}: --format text")
    return text


def execute(arguments: argparse.Namespace) -> int:
    """Write the report, and check the conditions."""
    from zeus_core.report.emissions import charged
    from zeus_core.report.fail_if import Condition, judged
    from zeus_core.training.record.run_file import read_run

    kind = arguments.format or _format_of(arguments.output)
    conditions = [Condition(text) for text in arguments.fail_if]
    if arguments.baseline and not conditions:
        raise UsageError("--baseline is what --fail-if compares with; to see runs side by side, name all of them")
    for option in ("location", "training_type"):
        if getattr(arguments, option) is not None and kind not in ("card", "json"):
            raise UsageError(f"--{option.replace('_', '-')} is given, which only --format card and json have")
    found, baseline = _read_runs(arguments.runs), None if arguments.baseline is None else read_run(arguments.baseline)
    electricity = electricity_from(arguments)
    with _refusing_damaged_files():
        runs = [(name, charged(run, electricity)) for name, run in found]
        notes = judged(conditions, runs, None if baseline is None else charged(baseline, electricity))
        text = _report_text(kind, runs, notes, arguments)
    _write_output(text, arguments.output)
    for note, _ in notes:
        complain(f"zeus-core: {note}")
    return _FAILED if any(is_bad for _, is_bad in notes) else 0


def _report_text(kind: str, runs: Runs, notes: Sequence[tuple[str, bool]], arguments: argparse.Namespace) -> str:
    from zeus_core.report.energy_statement import card_of, statement_of
    from zeus_core.report.many_runs import are_many
    from zeus_core.report.run_page import run_page
    from zeus_core.report.run_text import runs_csv, runs_json, runs_markdown

    if kind == "text":
        return runs_markdown(runs, notes)
    if kind == "html":
        return run_page(runs, notes, {} if are_many(runs) else _further_sections(arguments.runs, runs))
    if kind == "csv":
        return runs_csv(runs)
    reason = ""
    if len(runs) < len(arguments.runs):
        reason = "a sum without some of its runs states nothing; give only runs that can be read"
    elif len({run.run for _, run in runs}) < len(runs):
        reason = "two of the runs are the same, which would count twice; name it once"
    statement = None if reason else statement_of(runs, arguments.location, arguments.training_type)
    if kind == "json":
        if reason:
            complain(f"zeus-core: no statement: {reason}")
        return runs_json(runs, notes, statement)
    if statement is None:
        raise UsageError(reason)
    return card_of(statement, runs)


def _format_of(output: Path | None) -> str:
    if output is None:
        return "text"
    if output.suffix not in _FORMAT_OF_SUFFIX:
        raise UsageError(f"--output is {str(output)!r}; a report is a page (.html), a text (.md, .txt), .json or .csv")
    return _FORMAT_OF_SUFFIX[output.suffix]


@contextmanager
def _refusing_damaged_files() -> Iterator[None]:
    """Raise a `UsageError` for numbers of run files that are of the right type, and cannot be."""
    try:
        yield
    except UsageError:
        raise
    except (ArithmeticError, ValueError, LookupError) as error:
        raise UsageError(
            f"a run file holds numbers that no run has written, and that cannot be shown ({error}); take the file "
            "from a copy, or resume the run"
        ) from error


def _read_runs(places: Sequence[Path]) -> list[tuple[str, RunRecord]]:
    """Read runs; if some of several cannot be used, those that can are reported, with a line for each other one.

    Raises:
        UsageError: None can be used.
    """
    from zeus_core.training.record.run_file import read_run

    runs, complaints = [], []
    for place in places:
        try:
            runs.append((_name(place), read_run(place)))
        except UsageError as error:
            complaints.append(str(error))
    if not runs:
        raise UsageError("; ".join(complaints))
    for complaint in complaints:
        complain(f"zeus-core: left out: {complaint}")
    return runs


def _name(place: Path) -> str:
    """Return the name of a run for people: its output folder, with the folder around it."""
    place = place.parent if place.name == "run.json" else place
    place = place.parent if place.name == "zeus-energy" else place
    place = place if place.name else place.resolve()  # such as "."
    return "/".join(part for part in place.parts[-2:] if part != "/") or str(place)


def _further_sections(places: Sequence[Path], runs: Runs) -> dict[str, list[tuple[Section, str]]]:
    """Return the sections with their pictures that are made of what lies beside each run.

    A section is registered: a function of the place of a run and its `RunRecord`, which returns a `Section` with its
    picture, an SVG or "", or None if there is nothing to show.
    """
    sections = dict(registered(SECTIONS, lambda problem: complain(f"zeus-core: a section is left out: {problem}")))
    found: dict[str, list[tuple[Section, str]]] = {}
    for name, run in runs:
        place = next(place for place in places if _name(place) == name)
        for section, make in sections.items():
            try:
                made = make(place, run)
            except Exception as error:  # it may be of a stranger: an error of any kind
                reason = error if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
                complain(f"zeus-core: no section {section!r} of {name}: {reason}")
                continue
            if made is not None:
                found.setdefault(name, []).append(made)
    return found


def _write_output(text: str, output: Path | None) -> None:
    """Write a text to a file, or to the terminal.

    Raises:
        UsageError: The file cannot have that name.
        OSError: The file cannot be written.
    """
    if output is None:
        write(text.rstrip("\n"), sys.stdout)
        return
    try:
        make_folder(output.parent)
        write_atomically(output, text.rstrip("\n") + "\n")
    except ValueError as error:
        raise UsageError(f"--output is {str(output)!r}, which cannot be written: {error}") from error
