"""The journal of a run: what each of its parts has taken, kept where a kill cannot take it away.

A run is one training from its first step to its last, however often it is interrupted and resumed; a part is what one
process does of it. Each rank appends to a file of its own.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.training._account import Account

__all__ = ["Entry", "Journal"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """What a part had taken at some step: one line of a journal.

    Attributes:
        run: Name of the run.
        part: Name of the part.
        begin_step: The optimizer step the part began at.
        step: The step of the entry.
        account: All the part has taken by then.
    """

    run: str
    part: str
    begin_step: int
    step: int
    account: Account

    def to_line(self) -> str:
        """A line of JSON that `from_line` reads back."""
        return json.dumps({**self.__dict__, "account": self.account.to_json()})

    @classmethod
    def from_line(cls, line: str) -> Entry:
        """Read what `to_line` wrote.

        Raises:
            UsageError: It is something else.
        """
        try:
            fields: dict[str, Any] = json.loads(line)
            return cls(
                run=str(fields["run"]),
                part=str(fields["part"]),
                begin_step=int(fields["begin_step"]),
                step=int(fields["step"]),
                account=Account.from_json(fields["account"]),
            )
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"this is not an entry of a journal: {error!r}") from error


class Journal:
    """The journals of a run's ranks, in one folder; this rank appends to its own.

    A rank also reads the journals of ranks that are no more, where the run had more of them before: those whose number
    leaves the same remainder by the number of ranks.

    Args:
        folder: Where they are; made when there is something to write.
        rank: This rank.
        world_size: How many there are.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._world_size = world_size
        self._path = folder / f"rank-{rank}.jsonl"
        self._is_ready = False
        self._has_failed = False

    def append(self, entry: Entry) -> None:
        """Add an entry. Where that fails, training goes on without the journal, which is said once."""
        try:
            if not self._is_ready:
                self._make_ready()
            with self._path.open("a", encoding="utf-8") as file:
                file.write(entry.to_line() + "\n")
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
        with self._path.open("ab") as file:
            # What a kill has left of a line must not spoil the next one.
            file.write(b"\n" if _ends_amid_a_line(self._path) else b"")
        self._is_ready = True

    def read(self, run: str) -> list[list[Entry]]:
        """The entries of a run in each journal that is this rank's to read. Lines that cannot be read are left out."""
        return [self._read(path, run) for path in sorted(self._folder.glob("rank-*.jsonl")) if self._is_ours(path)]

    def _is_ours(self, path: Path) -> bool:
        number = path.stem.removeprefix("rank-")
        return number.isdigit() and int(number) % self._world_size == self._rank

    def _read(self, path: Path, run: str) -> list[Entry]:
        entries, damaged_lines = [], 0
        try:
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                if run not in line:  # one of the many runs that may have been in this folder
                    continue
                try:
                    entries.append(Entry.from_line(line))
                except UsageError:
                    damaged_lines += 1
        except OSError as error:
            _logger.warning("the energy journal %s cannot be read: %s", path, error)
        if damaged_lines:
            _logger.warning("%d lines of the energy journal %s are damaged and left out", damaged_lines, path)
        return entries


def _ends_amid_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"
