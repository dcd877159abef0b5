"""The journal of a run: the account of each of its parts, in files that survive a kill.

A run is one training from its first step to its last, however often it is interrupted and resumed. A part is the work
of one process on it. Each rank appends to a file of its own.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from zeus_core.files import without_links, write_atomically
from zeus_core.process.deadline import waiting_for
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.journal_lines import Entry, JournalLines, Point

_logger = logging.getLogger(__name__)

# Lines that later ones of their part stand for, from which on a file is written anew: 0.1 MB.
_MANY_LINES = 100
ENTRY_FRACTION: float = 1e-3
"""The share of its time that a part may be ahead of its journal, checkpoints aside: lines grow as a logarithm."""

_QUICK_LINES = 30_000  # take half a second; more wait until the run is resumed


class Journal:
    """The journals of a run's ranks, in one folder; this rank appends to its own.

    Each entry is a line. Once a part has many, one line stands for all of them: at its end, or when the run is resumed.
    If the run had more ranks before, each rank also reads the journals of some ranks that do not exist any more: those
    whose number leaves the same remainder by the number of ranks.

    Args:
        folder: The folder of the journals; made when there is something to write.
        rank: This rank.
        world_size: The number of ranks.
        waits: Write nothing before `begin_writing`: until a run has a checkpoint, nothing can continue it, and some
            programs refuse a folder that is not empty and has no checkpoint.
    """

    def __init__(self, folder: Path, rank: int, world_size: int, waits: bool = False) -> None:
        self._folder = folder
        self._rank = rank
        self._world_size = world_size
        self._path = folder / f"rank-{rank}.jsonl"
        self._is_ready = False
        self._has_failed = False
        self._lines = 0  # written
        self._waiting: dict[str, Entry] | None = {} if waits else None  # the latest entry of each part

    @property
    def folder(self) -> Path:
        """The folder."""
        return self._folder

    @property
    def waits(self) -> bool:
        """Whether nothing is written yet."""
        return self._waiting is not None

    def begin_writing(self) -> None:
        """Write what has waited, and every entry from now on."""
        waiting, self._waiting = self._waiting or {}, None
        for entry in waiting.values():
            self.append(entry)

    def append(self, entry: Entry) -> None:
        """Append an entry. On I/O errors training goes on without the journal, with one warning."""
        if self._waiting is not None:
            self._waiting[entry.part] = entry
            return
        try:
            if not self._is_ready:
                self._make_ready()
            with waiting_for("files"):
                _append(self._path, entry.to_line())
            self._lines += 1
            if entry.is_end and _MANY_LINES < self._lines < _QUICK_LINES:
                self._lines = 0
                self._read(self._path, entry.run)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning(
                    "the energy journal %s cannot be written; after an interruption this part will be missing: %s",
                    self._path,
                    error,
                )

    def _make_ready(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab", opener=without_links) as file:
            # A line that a kill has cut must not spoil the next one.
            file.write(b"\n" if _ends_within_a_line(self._path) else b"")
        self._is_ready = True

    def read(self, run: str) -> list[list[Entry]]:
        """Read the latest entry of each part of a run, in each journal that this rank is to read.

        Damaged lines are left out.
        """
        return [self._read(path, run) for path in sorted(self._folder.glob("rank-*.jsonl")) if self._is_ours(path)]

    def _is_ours(self, path: Path) -> bool:
        number = path.stem.removeprefix("rank-")
        return number.isdigit() and int(number) % self._world_size == self._rank

    def _read(self, path: Path, run: str) -> list[Entry]:
        """Read a journal; write this rank's own anew if it has many lines that later ones stand for."""
        lines = JournalLines(run)
        try:
            with open(path, encoding="utf-8", errors="replace", opener=without_links) as file:
                lines.add(file)
                if not lines.finish():
                    file.seek(0)
                    lines = JournalLines(run, is_strict=True)
                    lines.add(file)
                    lines.finish()
                if path == self._path and lines.superseded > _MANY_LINES and _is_at(path, file):
                    with suppress(OSError), waiting_for("files"):
                        write_atomically(path, lines.text())
                        # Of another process that has appended to the file before it was replaced.
                        late = lines.unfinished + file.read()
                        _append(path, late[: late.rfind("\n") + 1])
        except OSError as error:
            _logger.warning("the energy journal %s cannot be read: %s", path, error)
        if lines.damaged:
            _logger.warning("%d lines of the energy journal %s are damaged and left out", lines.damaged, path)
        if lines.unknown:
            _logger.warning(
                "%d lines of the energy journal %s are left out: another version of zeus-core wrote them, or they were "
                "changed since (%s)",
                lines.unknown,
                path,
                lines.reason,
            )
        return lines.entries


def _append(path: Path, text: str) -> None:
    """Append to a file; again if another process has written it anew meanwhile, which may not have seen the text."""
    with open(path, "a", encoding="utf-8", opener=without_links) as file:
        file.write(text)
        file.flush()
        is_seen = _is_at(path, file)
    if not is_seen:
        _append(path, text)


def _is_at(path: Path, file: TextIO) -> bool:
    """Return whether a file that is open has not been replaced by another."""
    return os.path.samestat(os.fstat(file.fileno()), path.stat())


def _ends_within_a_line(path: Path) -> bool:
    with open(path, "rb", opener=without_links) as file:
        if file.seek(0, 2) == 0:
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"


# Between two entries that follow each other more quickly than some updates of a counter, the power is not known well.
_MIN_SECONDS = 1.0


def earlier_account(
    journals: Iterable[Sequence[Entry]], run: str, begin_step: int, now_seconds: float = math.inf
) -> Account | None:
    """Add up what a run has taken before a part that begins at `begin_step`; None if no journal knows the run.

    The last entry of each part counts. A later part began at some step of an earlier one: the earlier part spent what
    it took after that step on steps that were done again. A part that was killed has taken more than its last entry
    says, of which the account states the most that it can be.

    Args:
        journals: The entries of each rank, in the order in which they were written.
        run: The name of the run.
        begin_step: The optimizer step at which the new part begins.
        now_seconds: When that is, in seconds since 1970: interrupted parts had ended by then.
    """
    ranks = [[entry for entry in entries if entry.run == run] for entries in journals]
    known = [_earlier_account_of_rank(entries, begin_step, now_seconds) for entries in ranks if entries]
    return Account.from_ranks(known) if known else None


def _earlier_account_of_rank(entries: Sequence[Entry], begin_step: int, now_seconds: float) -> Account:
    parts: dict[str, Entry] = {}
    for entry in entries:
        before = parts.get(entry.part)
        parts[entry.part] = entry if before is None else replace(entry, before=[*before.points, *entry.before])
    earlier, pace = Account(), _EntrySpacing.from_parts(part.points for part in parts.values())
    for part in reversed(parts.values()):
        account = part.account
        changed: dict[str, Any] = {"redone": account.redone + _spent_after(begin_step, part)}
        if not part.is_end:
            joules = pace.most_joules(now_seconds - part.at_seconds)
            changed |= {"interruptions": 1, "unrecorded_joules": joules}
        earlier += replace(account, **changed)
        begin_step, now_seconds = min(begin_step, part.begin_step), (part.before or part.points)[0].at_seconds
    return earlier


class _EntrySpacing(NamedTuple):
    """How often a rank has written entries, and the highest mean power between two of them; None if it has not."""

    seconds: float | None
    watts: float | None

    @classmethod
    def from_parts(cls, parts: Iterable[Sequence[Point]]) -> _EntrySpacing:
        """Look at all parts: one that was killed early may have a single entry."""
        intervals = [
            (after.seconds - before_seconds, after.joules - before_joules)
            for points in parts
            for (before_seconds, before_joules), after in zip(
                [(0.0, 0.0), *((point.seconds, point.joules) for point in points)], points, strict=False
            )
        ]
        watts = [joules / seconds for seconds, joules in intervals if seconds >= _MIN_SECONDS]
        lengths = sorted(seconds for seconds, _ in intervals)
        longest, usual = (lengths[-1], lengths[len(lengths) // 2]) if lengths else (0.0, 0.0)
        if ENTRY_FRACTION * sum(lengths) > usual:  # entries were left out: the next one may be a log later
            longest += usual
        return cls(longest or None, max(watts, default=None))

    def most_joules(self, gap_seconds: float) -> float | None:
        """Return the most that was taken after the last entry of a part, which another part followed after a gap."""
        seconds = max(gap_seconds, 0.0) if self.seconds is None else min(self.seconds, max(gap_seconds, 0.0))
        if seconds == 0.0:
            return 0.0
        return None if self.watts is None or seconds == math.inf else self.watts * seconds


def _spent_after(step: int, part: Entry) -> Tally:
    """Compute what a part took after a step: all of it if no entry has what it had taken by then."""
    if part.step <= step:
        return Tally()
    known = next((point for point in reversed(part.before) if point.step <= step), None)
    return part.account.total if known is None else part.account.total - known.total
