"""`zeus-core report`: where the energy of runs went, as a page, and as a check for CI."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zeus_core.cli.arguments import path
from zeus_core.cli.text import complain, make_folder, write
from zeus_core.errors import UsageError
from zeus_core.files import write_atomically

if TYPE_CHECKING:
    from zeus_core.report.fail_if import Condition
    from zeus_core.report.run_metrics import Quantity
    from zeus_core.report.run_sections import Section
    from zeus_core.training.record.run_records import RunRecord

SUMMARY = "Report where the energy of trainings went, and compare them"

_Shown = TypeVar("_Shown")

_FORMATS = ("html", "markdown", "json", "line")
_FORMAT_OF_SUFFIX = {".html": "html", ".htm": "html", "": "html", ".md": "markdown", ".json": "json", ".txt": "line"}
_FAILED = 1

# Sections that wings make of a run: the heading, and the module whose `describe_run(place, run)` returns text and
# picture, or None.
_SECTIONS = {"pipeline": ("The pipeline", "zeus_core.pipeline.iteration_timeline")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs", type=path, nargs="+", metavar="RUN", help="the output folder of a training, or its zeus-energy/run.json"
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        help="html, markdown, json, or a line for a paper; by default as the suffix of FILE says, or markdown",
    )
    parser.add_argument("--output", type=path, metavar="FILE", help="write to this file, in place of the terminal")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 1 if it holds for certain, such as 'energy_per_token_j > 1.05 * baseline'; may be repeated",
    )
    parser.add_argument(
        "--baseline",
        type=path,
        action="append",
        default=[],
        metavar="RUN",
        help="the run that --fail-if compares with; several span the range from run to run",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Write the report, and check the condition."""
    from zeus_core.report.fail_if import Condition
    from zeus_core.report.many_runs import runs_in_full
    from zeus_core.report.run_page import run_page
    from zeus_core.report.run_text import run_line, runs_json, runs_markdown

    kind = arguments.format or _format_of(arguments.output)
    conditions = [Condition(text) for text in arguments.fail_if]
    if arguments.baseline and not conditions:
        raise UsageError("--baseline is what --fail-if compares with; to see runs side by side, name all of them")
    runs = read_runs(arguments.runs)
    notes = shown(lambda: _judged(conditions, runs, arguments)) if conditions else []
    in_full = runs_in_full(runs, notes)
    forms: dict[str, Callable[[], str]] = {
        "html": lambda: run_page(runs, notes, _further_sections(arguments.runs, [runs[number] for number in in_full])),
        "markdown": lambda: runs_markdown(runs, notes),
        "json": lambda: runs_json(runs, notes),
        "line": lambda: "\n".join(
            run_line(run) if len(runs) == 1 else f"{name}: {run_line(run)}" for name, run in runs
        ),
    }
    write_output(shown(forms[kind]), arguments.output)
    for note, _ in notes:
        complain(f"zeus-core: {note}")
    return _FAILED if any(is_bad for _, is_bad in notes) else 0


def _format_of(output: Path | None) -> str:
    if output is not None and output.suffix not in _FORMAT_OF_SUFFIX:
        raise UsageError(f"--output is {str(output)!r}; a report is a page (.html), .md, .json, or .txt for a line")
    return "markdown" if output is None else _FORMAT_OF_SUFFIX[output.suffix]


def shown(make: Callable[[], _Shown]) -> _Shown:
    """Return what is made of runs, such as a text.

    Raises:
        UsageError: Their files hold numbers that are of the right type, and cannot be.
    """
    try:
        return make()
    except UsageError:
        raise
    except (ArithmeticError, ValueError, LookupError) as error:
        raise UsageError(
            f"a run file holds numbers that no training has written, and that cannot be shown ({error}); take the file "
            "from a copy, or resume the training"
        ) from error


def read_runs(places: Sequence[Path]) -> list[tuple[str, RunRecord]]:
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


def _further_sections(
    places: Sequence[Path], runs: Sequence[tuple[str, RunRecord]]
) -> dict[str, list[tuple[Section, str]]]:
    """Return the sections with their pictures that wings make of what lies beside each run."""
    from zeus_core.report.run_sections import Section

    known = dict(runs)
    found: dict[str, list[tuple[Section, str]]] = {}
    for place in places:
        name = _name(place)
        if name not in known:
            continue
        for section, (title, module) in _SECTIONS.items():
            try:
                made = importlib.import_module(module).describe_run(place, known[name])
            except UsageError as error:
                complain(f"zeus-core: no section {section!r} of {name}: {error}")
                continue
            if made is not None:
                found.setdefault(name, []).append((Section(section, title, made[0]), made[1]))
    return found


def _name(place: Path) -> str:
    """Return the name of a run for people: that of its output folder, with the folder around it."""
    place = place.parent if place.name == "run.json" else place
    place = place.parent if place.name == "zeus-energy" else place
    place = place if place.name else place.resolve()  # such as "."
    return "/".join(part for part in place.parts[-2:] if part != "/") or str(place)


def _judged(
    conditions: Sequence[Condition], runs: Sequence[tuple[str, RunRecord]], arguments: argparse.Namespace
) -> list[tuple[str, bool]]:
    """Return a sentence for each run and condition, and whether it is bad news."""
    from zeus_core.report.run_metrics import metrics_of
    from zeus_core.training.record.run_file import read_run

    baselines = [read_run(place) for place in arguments.baseline]
    against = _span([metrics_of(baseline) for baseline in baselines]) if baselines else None
    notes: list[tuple[str, bool]] = []
    for name, run in runs:
        if other := _differences(run, baselines):
            raise UsageError(
                f"{name} and its baseline differ in {'; '.join(other)}: give a baseline of the same GPUs and work"
            )
        for condition in conditions:
            verdict = condition.judge(metrics_of(run), against)
            words = {True: "FAILED", False: "passed", None: "passed, as the intervals leave it open"}[verdict.holds]
            notes.append((f"{name}: {condition.text}: {words}: {verdict.text}", verdict.holds is True))
    return notes


def _differences(run: RunRecord, baselines: Sequence[RunRecord]) -> list[str]:
    from zeus_core.report.run_metrics import differences

    return list(dict.fromkeys(text for baseline in baselines for text in differences(run, baseline)))


def _span(baselines: Sequence[dict[str, Quantity]]) -> dict[str, Quantity]:
    """Return the numbers that all baselines have, from the lowest to the highest."""
    from zeus_core.report.run_metrics import Quantity

    spans = {}
    for name in baselines[0]:
        known = [baseline[name] for baseline in baselines if name in baseline]
        if len(known) == len(baselines):
            mean = sum(one.value for one in known) / len(known)
            spans[name] = Quantity(mean, min(one.low for one in known), max(one.high for one in known))
    return spans


def write_output(text: str, output: Path | None) -> None:
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
