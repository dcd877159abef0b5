"""Brings the traces of the ranks of a job together, with their clocks aligned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zeus_core.errors import UsageError
from zeus_core.tracing._trace_events import Event
from zeus_core.tracing.clocks import point_at
from zeus_core.tracing.facts import ClockPoint, RankFacts
from zeus_core.tracing.trace_file import Trace, read_trace

_FOLDER = "zeus-energy"


@dataclass(frozen=True)
class Merged:
    """The traces of several ranks in one.

    Attributes:
        trace: All events, by the clock of rank 0. Its events can be iterated once.
        notes: Sentences about what is missing or uncertain.
    """

    trace: Trace
    notes: Sequence[str]


def traces_in(folder: Path) -> list[Path]:
    """Return the files of the ranks in the folder of a run, or in its folder "zeus-energy".

    Raises:
        UsageError: There are none.
    """
    for place in (folder, folder / _FOLDER):
        paths = [path for path in place.glob("trace-*.json.gz") if path.name[6:-8].isdigit()]
        if paths:
            return sorted(paths, key=lambda path: int(path.name[6:-8]))
    raise UsageError(f"{folder} holds no trace-0.json.gz: train with trace=True, and give the folder of the run")


def merge(paths: Sequence[Path]) -> Merged:
    """Merge the files of some ranks of one job. Those that cannot be used are left out, with a note.

    Raises:
        UsageError: None of them can be read.
    """
    facts: dict[Path, RankFacts] = {}
    notes, errors = [], []
    for path in paths:
        try:
            (facts[path],) = read_trace(path).ranks
        except UsageError as error:
            errors.append(str(error))
        except ValueError:
            errors.append(f"{path} is merged already")
    if not facts:
        raise UsageError("; ".join(errors) or "no trace was given")
    notes += [f"left out: {error}" for error in errors]
    facts = _of_one_job(facts, notes)
    _note_missing(facts, notes)
    alignment = Alignment(list(facts.values()))
    base = min(rank.base_nanoseconds - round(1e9 * alignment.ahead(rank)(0.0)) for rank in facts.values())
    skew = _skew(alignment, notes)
    return Merged(Trace(base, list(facts.values()), _events(facts, alignment, base), skew), notes)


def _of_one_job(facts: dict[Path, RankFacts], notes: list[str]) -> dict[Path, RankFacts]:
    """Leave out ranks of another training, of another number of ranks, or that are there twice."""
    newest = max(facts.values(), key=lambda rank: rank.base_nanoseconds)
    kept: dict[int, Path] = {}
    for path, rank in sorted(facts.items(), key=lambda item: -item[1].base_nanoseconds):
        if rank.world_size != newest.world_size:
            notes.append(f"left out: {path} is of a job of {rank.world_size} ranks, not of {newest.world_size}")
        elif rank.run != newest.run:
            notes.append(f"left out: {path} is of another training")
        elif rank.rank in kept:
            notes.append(f"left out: {path} is rank {rank.rank} as {kept[rank.rank]} is, and older")
        else:
            kept[rank.rank] = path
    return {kept[number]: facts[kept[number]] for number in sorted(kept)}


def _note_missing(facts: dict[Path, RankFacts], notes: list[str]) -> None:
    ranks = {rank.rank for rank in facts.values()}
    size = next(iter(facts.values())).world_size
    missing = [str(number) for number in range(size) if number not in ranks]
    if missing:
        shown = ", ".join(missing[:20]) + (" and more" if len(missing) > 20 else "")
        notes.append(f"{len(missing)} of {size} ranks are missing: {shown}")


def _skew(alignment: Alignment, notes: list[str]) -> float | None:
    """Return how far any two clocks can be apart; None if they were not compared."""
    skew = alignment.skew_seconds
    if skew is None and alignment.unknown:
        notes.append(
            f"the clocks of ranks {', '.join(map(str, alignment.unknown))} were not compared with that of rank 0: they "
            "are aligned as their machines are set, and the skew is not known"
        )
    return skew


def _events(facts: dict[Path, RankFacts], alignment: Alignment, base: int) -> Iterator[Event]:
    """Read the files once more, one after the other: all ranks at once may not fit into memory."""
    for path, rank in facts.items():
        ahead, begin = alignment.ahead(rank), (rank.base_nanoseconds - base) / 1000

        def aligned(ts: float) -> float:
            return round(ts + begin - 1e6 * ahead(ts / 1e6), 3)  # noqa: B023, as it is used within the loop

        for event in read_trace(path).events:
            if event["ph"] == "M":
                yield event
                continue
            ts = aligned(event["ts"])
            end = {"dur": round(max(aligned(event["ts"] + event["dur"]) - ts, 0.0), 3)} if "dur" in event else {}
            yield {**event, "ts": ts, **end}


_READING_SECONDS = 1e-6  # two processes that read one clock: a call of it takes less


class Alignment:
    """How far the clock of each rank is ahead of that of rank 0. Pure.

    Ranks of one machine share its monotonic clock, so that each of them is placed by the comparison of the best-known
    one.

    Args:
        ranks: The ranks, each once.
    """

    def __init__(self, ranks: Sequence[RankFacts]) -> None:
        machines: dict[str, list[RankFacts]] = {}
        for rank in ranks:
            machines.setdefault(rank.machine or f"rank {rank.rank}", []).append(rank)
        self._reference = {
            rank.rank: reference for of_one in machines.values() for reference in [_best(of_one)] for rank in of_one
        }
        self._machines = list(machines.values())
        self.unknown: Sequence[int] = [
            rank.rank for rank in ranks if self._reference[rank.rank].rank > 0 and not self._reference[rank.rank].clock
        ]
        """Ranks whose clock nothing compares with that of rank 0."""

    def ahead(self, rank: RankFacts) -> Callable[[float], float]:
        """Return the function of how far the clock of a rank is ahead, at a moment of its trace."""
        reference = self._reference[rank.rank]
        later = (rank.machine_nanoseconds - reference.machine_nanoseconds) / 1e9
        between = (rank.base_nanoseconds - reference.base_nanoseconds) / 1e9 - later

        def ahead(at: float) -> float:
            point = _point(reference, at + later)
            return between + (0.0 if point is None else point.ahead_seconds)

        return ahead

    @property
    def skew_seconds(self) -> float | None:
        """How far any two clocks can be apart; None if that is not known, or of one rank."""
        if len(self._reference) == 1 or (self.unknown and len(self._machines) > 1):
            return None
        if len(self._machines) == 1:
            return _READING_SECONDS
        worst = sorted(map(self._uncertainty, self._machines))
        return max(worst[-1] + worst[-2], _READING_SECONDS)

    def _uncertainty(self, of_one: Sequence[RankFacts]) -> float:
        """Return how far the clock of a machine can be off at most: at an end, a comparison, or halfway between two."""
        reference = self._reference[of_one[0].rank]
        moments = [0.0, *(point.at for point in reference.clock)]
        for rank in of_one:
            later = (rank.machine_nanoseconds - reference.machine_nanoseconds) / 1e9
            moments += [later, *(later + at for at, _ in rank.unix_points)]
        return _worst(reference, moments)


def _best(of_one: Sequence[RankFacts]) -> RankFacts:
    """Return the rank of a machine whose clock is known best: rank 0, or the one with the closest comparisons."""
    compared = [rank for rank in of_one if rank.rank == 0 or rank.clock] or of_one[:1]
    return min(compared, key=lambda rank: _worst(rank, [0.0, *(at for at, _ in rank.unix_points)]))


def _point(rank: RankFacts, at: float) -> ClockPoint | None:
    return ClockPoint(at, 0.0, 0.0) if rank.rank == 0 else point_at(rank.clock, at)


def _worst(rank: RankFacts, moments: Sequence[float]) -> float:
    in_order = sorted([*moments, *(point.at for point in rank.clock)])
    in_order += [(before + after) / 2 for before, after in itertools.pairwise(in_order)]
    points = [_point(rank, at) for at in in_order]
    return max((point.uncertainty_seconds for point in points if point is not None), default=0.0)
