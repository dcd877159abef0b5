"""Keeps the file of a run up to date while it trains, on its first rank."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from zeus_core.documents import parse_json
from zeus_core.errors import UsageError
from zeus_core.files import folder_lock, is_special
from zeus_core.ports.run_identity import RunIdentity, identity_here
from zeus_core.ports.site_defaults import for_catalogue
from zeus_core.process.deadline import waiting_for
from zeus_core.training.record.run_file import RUN_DOCUMENT, RUN_FILE
from zeus_core.training.record.run_records import PartRecord, RunRecord

_logger = logging.getLogger(__name__)

# A run that is interrupted more often keeps its latest parts; the account still holds all of them.
_MAX_PARTS = 50


class RunKeeper:
    """The file of one run after another, in one folder, which other processes may use as well.

    A part takes the name `run.json` when it is first written. The file that is there, of a run that may still train, is
    moved to `run-PART.json`, named by its latest part. If that part goes on, it is written there, which is logged once.

    Args:
        folder: The folder of the journals.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / RUN_FILE
        self._own_path: Path | None = None  # not chosen before there is something to write
        self._earlier: tuple[PartRecord, ...] = ()
        self._identity: RunIdentity | None = None
        self._has_failed = False

    def begin(self, run: str, is_new: bool) -> None:
        """Begin a part of a run, and read the earlier ones from the files in the folder."""
        self._own_path, self._earlier, self._identity = None, (), identity_here()
        if is_new:
            return
        named = RUN_DOCUMENT.load(self._path)
        records = [named, *map(_read, sorted(self._path.parent.glob("run-*.json")))]
        latest: dict[str, PartRecord] = {}  # of each part; it may be in several files
        for part in (part for record in records if record is not None and record.run == run for part in record.parts):
            latest[part.name] = max(latest.get(part.name, part), part, key=lambda each: each.until_seconds)
        self._earlier = tuple(map(_closed, latest.values()))[-_MAX_PARTS:]

    def keep(self, record: RunRecord, in_folder: bool = True) -> None:
        """Replace the file, and that in the catalogue; on errors, training goes on without it, with one warning.

        Args:
            record: The run, with its latest part alone.
            in_folder: Whether the folder may be written to.
        """
        others = tuple(part for part in self._earlier if part.name != record.latest.name)
        has_ended = record.latest.state != "running"  # else training would wait for the disk at each checkpoint
        whole = replace(record, parts=(*others, replace(record.latest, identity=self._identity)))
        for_catalogue(record.run, lambda: json.dumps(RUN_DOCUMENT.to_json(whole)), has_ended)
        if not in_folder:
            return
        try:
            with waiting_for("files"), folder_lock(self._path.parent):
                self._own_path = self._place(record.latest.name)
                RUN_DOCUMENT.write(self._own_path, whole, None, is_lasting=has_ended)
        except (OSError, ValueError) as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("the run file %s cannot be written; reports of this run need it: %s", self._path, error)

    def _place(self, part: str) -> Path:
        """Return the path to write the file of a part to."""
        if self._own_path not in (None, self._path):
            return self._own_path
        written_by = _latest_part_name(self._path)
        if written_by is None or written_by == part:
            return self._path
        if self._own_path is None:
            if all(written_by != earlier.name for earlier in self._earlier):
                self._path.replace(self._beside(written_by))
            return self._path
        beside = self._beside(part)
        _logger.warning("another process trains in this folder too: the run file of this one is now %s", beside)
        return beside

    def _beside(self, part: str) -> Path:
        return self._path.with_name(f"run-{part[:8]}.json")


def _read(path: Path) -> RunRecord | None:
    try:
        return RUN_DOCUMENT.read(path)
    except (OSError, UsageError):
        return None


def _latest_part_name(path: Path) -> str | None:
    """Return the name of the latest part in a run file; None if there is no such file. Reads the name alone."""
    try:
        name = None if is_special(path) else parse_json(path.read_bytes())["parts"][-1]["name"]
    except (OSError, UsageError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) and name.isalnum() else None  # it becomes part of the name of a file


def _closed(part: PartRecord) -> PartRecord:
    return replace(part, state="interrupted") if part.state == "running" else part
