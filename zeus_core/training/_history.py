"""The account of the earlier parts of a run, with the steps that were done again. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from zeus_core.training._account import Account
from zeus_core.training._journal import Entry
from zeus_core.training._tally import Tally

__all__ = ["earlier_account"]


# Between two entries that follow each other more quickly than some updates of a counter, the power is not known well.
_MIN_SECONDS = 1.0


def earlier_account(
    journals: Iterable[Sequence[Entry]], run: str, begin_step: int, now_seconds: float = math.inf
) -> Account | None:
    """Add up what a run has taken before a part that begins at `begin_step`; None if no journal knows the run.

    The last entry of each part counts. A later part began at some step of an earlier one: the earlier part spent what
    it took after that step on steps that were done again. A part that was killed has taken more than its last entry
    says, of which the account tells the most that it can be.

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
    parts: dict[str, list[Entry]] = {}
    for entry in entries:
        parts.setdefault(entry.part, []).append(entry)
    earlier, pace = Account(), _Pace.from_parts(parts.values())
    for part in reversed(parts.values()):
        last = part[-1].account
        if not part[-1].is_end:
            joules = pace.most_joules(now_seconds - part[-1].at_seconds)
            last = replace(last, interruptions=1, unrecorded_joules=joules)
        earlier += replace(last, redone=last.redone + _spent_after(begin_step, part))
        begin_step, now_seconds = min(begin_step, part[-1].begin_step), part[0].at_seconds
    return earlier


class _Pace(NamedTuple):
    """How often a rank has written entries, and the highest mean power between two of them; None if it has not."""

    seconds: float | None
    watts: float | None

    @classmethod
    def from_parts(cls, parts: Iterable[Sequence[Entry]]) -> _Pace:
        """Look at all parts: one that was killed early may have a single entry."""
        intervals = [
            after.account.total - before
            for part in parts
            for before, after in zip([Tally(), *(entry.account.total for entry in part)], part, strict=False)
        ]
        watts = [tally.measured_joules / tally.seconds for tally in intervals if tally.seconds >= _MIN_SECONDS]
        return cls(max((tally.seconds for tally in intervals), default=0.0) or None, max(watts, default=None))

    def most_joules(self, gap_seconds: float) -> float | None:
        """Return the most that was taken after the last entry of a part, which another part followed after a gap."""
        seconds = max(gap_seconds, 0.0) if self.seconds is None else min(self.seconds, max(gap_seconds, 0.0))
        if seconds == 0.0:
            return 0.0
        return None if self.watts is None or seconds == math.inf else self.watts * seconds


def _spent_after(step: int, part: Sequence[Entry]) -> Tally:
    """Compute what a part took after a step: all of it if no entry tells what it had taken by then."""
    kept = [entry for entry in part if entry.step <= step]
    if not kept:
        return part[-1].account.total
    return part[-1].account.total - kept[-1].account.total if kept[-1] is not part[-1] else Tally()
