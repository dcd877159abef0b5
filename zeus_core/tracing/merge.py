"""Brings the traces of the ranks of a job together, with their clocks aligned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zeus_core.errors import UsageError
from zeus_core.tracing._trace_events import Event
from zeus_core.tracing.clocks import Alignment
from zeus_core.tracing.facts import RankFacts
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
    if alignment.skew_seconds is None and alignment.unknown:
        notes.append(
            f"the clocks of ranks {', '.join(map(str, alignment.unknown))} were not compared with that of rank 0: they "
            "are aligned as their machines are set, and the skew is not known"
        )
    trace = Trace(base, list(facts.values()), _events(facts, alignment, base), alignment.skew_seconds)
    return Merged(trace, notes)


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
