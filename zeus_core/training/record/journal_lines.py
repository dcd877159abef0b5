"""The lines of a journal: what each says, and how many of them are read quickly."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

from zeus_core.codec import decode, encode
from zeus_core.documents import parse_json
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy, Method
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally

_METHODS = get_args(Method)
_NOTHING = encode(Account())  # the fields of an account that a line leaves out


class Point(NamedTuple):
    """All that a part had taken at one of its entries."""

    step: int
    at_seconds: float
    seconds: float
    joules: float
    uncertainty_joules: float
    lost_seconds: float
    method: Method

    @property
    def total(self) -> Tally:
        """Its time and energy."""
        energy = DeviceEnergy(self.joules, self.uncertainty_joules, self.method)
        return Tally(self.seconds, energy, self.lost_seconds)


@dataclass(frozen=True)
class Entry:
    """One line of a journal: the account of a part at some step.

    Attributes:
        run: The name of the run.
        part: The name of the part.
        begin_step: The optimizer step at which the part began.
        step: The optimizer step of the entry.
        account: All that the part has taken by then.
        at_seconds: When it was written, in seconds since 1970.
        is_end: Whether the part has ended with it. Without such an entry, it was interrupted.
        before: The entries of the part before it that it stands for; in a file, those it has taken the place of.
    """

    run: str
    part: str
    begin_step: int
    step: int
    account: Account
    at_seconds: float = 0.0
    is_end: bool = False
    before: Sequence[Point] = ()

    @property
    def points(self) -> Sequence[Point]:
        """All entries that it stands for, and itself."""
        total, energy = self.account.total, self.account.total.measured
        off_joules = energy.uncertainty_joules or 0.0
        own = self.step, self.at_seconds, total.seconds, total.measured_joules, off_joules, total.lost_seconds
        return [*self.before, Point(*own, energy.method)]

    def to_line(self) -> str:
        """Return its line, without what has its default."""
        fields = encode(self)
        fields["account"] = {
            name: value for name, value in fields["account"].items() if name == "total" or value != _NOTHING[name]
        }
        if not self.before:
            del fields["before"]
        return json.dumps(fields) + "\n"


class JournalLines:
    """The lines of a journal. All entries of a part but the latest are read as points: ten times quicker, and smaller.

    Args:
        run: The run whose entries are wanted.
        is_strict: Check each line as a whole, not only what is used of it.

    Attributes:
        entries: The latest entry of each part, in the order in which the parts began; made by `finish`.
        superseded: Lines that a later one of their part stands for.
        unfinished: The last line, if it has no end: another process may be writing it, or a kill has cut it.
        damaged: Lines that are no JSON.
        unknown: Lines that are no entries.
        reason: Why the latest of those is none.
    """

    def __init__(self, run: str, is_strict: bool = False) -> None:
        self._run = run
        self._is_strict = is_strict
        self._others: list[str] = []  # of other runs, or of other versions
        self._points: dict[str, list[Point]] = {}  # of each part
        self._latest: dict[str, dict[str, Any]] = {}  # the fields of its latest line
        self.entries: list[Entry] = []
        self.superseded: int = 0
        self.unfinished: str = ""
        self.damaged: int = 0
        self.unknown: int = 0
        self.reason: str = ""

    def add(self, lines: Iterable[str]) -> None:
        """Read lines."""
        for line in lines:
            self.unfinished = "" if line.endswith("\n") else line
            if self._run not in line:  # an entry of another of the runs that use this folder
                self._others.append(line)
                continue
            try:
                fields = parse_json(line)
            except UsageError:
                self.damaged += 1
                continue
            try:
                points = _points_of(fields)
                if self._is_strict:
                    _entry_of(fields)
            except UsageError as error:
                self.unknown, self.reason = self.unknown + 1, str(error)
                self._others.append(line)
                continue
            if fields["run"] != self._run:
                self._others.append(line)
                continue
            self.superseded += fields["part"] in self._latest
            self._points.setdefault(fields["part"], []).extend(points)
            self._latest[fields["part"]] = fields

    def finish(self) -> bool:
        """Make the entries; return whether the latest line of each part was one of this version."""
        try:
            self.entries = [_entry_of(fields, self._points[part][:-1]) for part, fields in self._latest.items()]
        except UsageError:
            return False
        return True

    def text(self) -> str:
        """Return the journal with one line for each part."""
        return "".join([*(f"{line.rstrip()}\n" for line in self._others), *(entry.to_line() for entry in self.entries)])


def _entry_of(fields: Mapping[str, Any], before: Sequence[Point] = ()) -> Entry:
    """Return the entry of a line, with the points before it; raise UsageError if it is none."""
    entry = decode(Entry, {**fields, "before": []})
    return replace(entry, before=tuple(before)) if before else entry


def _points_of(fields: Any) -> list[Point]:
    """Return the points of a line; raise UsageError if it has none."""
    try:
        total = fields["account"]["total"]
        energy = total["measured"]
        times = fields["step"], fields["at_seconds"], total["seconds"]
        off_joules = energy["uncertainty_joules"] or 0.0
        own = Point(*times, energy["energy_joules"], off_joules, total["lost_seconds"], energy["method"])
        points = [*(Point(*point) for point in fields.get("before", ())), own]
        is_named = isinstance(fields["run"], str) and isinstance(fields["part"], str)
        if is_named and all(math.isfinite(sum(point[:-1])) and point.method in _METHODS for point in points):
            return points
    except (AttributeError, LookupError, TypeError, OverflowError):
        pass
    _entry_of(fields if isinstance(fields, Mapping) else {})
    raise UsageError("its numbers are none")
