"""The file of a run: all that reports and statements of it need. One reader for all that write one.

The first rank replaces `FOLDER/zeus-energy/run.json` at each checkpoint, at some logs, and at the end of training. The
files of other runs in the folder stand beside it. `zeus-core run` writes one at its end, where it is asked to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zeus_core.documents import Document, parse_json
from zeus_core.errors import UsageError
from zeus_core.training.record.run_records import RunRecord

JOURNAL_FOLDER = "zeus-energy"
RUN_FILE = "run.json"
RUN_DOCUMENT = Document("zeus-core run file", 2, RunRecord, "the run")
_OF_COMMAND = {  # the fields that `zeus-core run` writes beside those of a run, for programs
    *("command", "exit_code", "signal", "start_time", "seconds", "is_simulated", "devices", "totals"),
    *("notes", "settings"),
}


def record_from_document(document: Any) -> RunRecord:
    """Return the run of a document, also of one that `zeus-core run` has written.

    Raises:
        UsageError: It is something else; the message says what it lacks.
    """
    if isinstance(document, Mapping) and "command" in document:
        document = {name: value for name, value in document.items() if name not in _OF_COMMAND}
        if isinstance(document.get("electricity"), Mapping):
            of_run = {name: value for name, value in document["electricity"].items() if name != "amounts"}
            document["electricity"] = of_run
    return RUN_DOCUMENT.from_json(document)


def run_path(place: Path) -> Path:
    """Return the file of the run at a place: the file, its folder, or the output folder of a training."""
    candidates = (place / RUN_FILE, place / JOURNAL_FOLDER / RUN_FILE)
    return next((path for path in candidates if path.exists()), place if not place.is_dir() else candidates[-1])


def read_run(place: Path) -> RunRecord:
    """Read the file of the run at a place; see `run_path`.

    Raises:
        UsageError: There is none, it cannot be read, or it is damaged, of another version, or something else; the
            message names the file, and what to do.
    """
    return read_owned_run(place)[0]


def read_owned_run(place: Path) -> tuple[RunRecord, os.stat_result]:
    """Read the file of the run at a place, and the state of the very file that was read; see `read_run`."""
    path = run_path(place)
    try:
        with path.open("rb") as file:
            state, data = os.fstat(file.fileno()), file.read()
        record = record_from_document(parse_json(data))
        for part in record.parts:
            part.search_record()
        return record, state
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(_missing(place, path)) from None
    except OSError as error:
        raise UsageError(f"the run file {path} cannot be read: {error}") from error
    except (UsageError, ValueError) as error:  # or no file can have this name
        raise UsageError(f"the run file {path} cannot be used: {error}") from error


def _missing(place: Path, path: Path) -> str:
    if not place.exists():
        return f"there is no run at {place}: give the output folder of a training, or its {JOURNAL_FOLDER}/{RUN_FILE}"
    if any(path.parent.glob("rank-*.jsonl")):
        return (
            f"{path} is missing, though there are journals beside it: the training was killed before its first "
            "checkpoint, or an older zeus-core ran it. Resume it, or let it end"
        )
    below = sorted(place.glob(f"*/{JOURNAL_FOLDER}/{RUN_FILE}"))[:3]
    if below:
        return f"{place} itself holds no run; there is one in {', '.join(str(file.parents[1]) for file in below)}"
    return (
        f"{place} holds no run: {path} is missing. It is written at logs, checkpoints and the end of a training that "
        "is measured, in the output folder of the Trainer or the folder= of TrainingEnergy"
    )
