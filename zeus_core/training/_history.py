"""The account of the earlier parts of a run, with the steps that were done again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from zeus_core.training._account import Account
from zeus_core.training._journal import Entry
from zeus_core.training._tally import Tally

__all__ = ["earlier_account"]


def earlier_account(journals: Iterable[Sequence[Entry]], run: str, begin_step: int) -> Account | None:
    """Add up what a run has taken before a part that begins at `begin_step`; None if no journal knows the run.

    The last entry of each part counts. A later part began at some step of an earlier one: the earlier part spent what
    it took after that step on steps that were done again.

    Args:
        journals: The entries of each rank, in the order in which they were written.
        run: The name of the run.
        begin_step: The optimizer step at which the new part begins.
    """
    ranks = [[entry for entry in entries if entry.run == run] for entries in journals]
    known = [_earlier_account_of_rank(entries, begin_step) for entries in ranks if entries]
    return Account.from_ranks(known) if known else None


def _earlier_account_of_rank(entries: Sequence[Entry], begin_step: int) -> Account:
    parts: dict[str, list[Entry]] = {}
    for entry in entries:
        parts.setdefault(entry.part, []).append(entry)
    earlier = Account()
    for part in reversed(parts.values()):
        last = part[-1].account
        earlier += replace(last, redone=last.redone + _spent_after(begin_step, part))
        begin_step = min(begin_step, part[-1].begin_step)
    return earlier


def _spent_after(step: int, part: Sequence[Entry]) -> Tally:
    """Compute what a part took after a step: all of it if no entry tells what it had taken by then."""
    kept = [entry for entry in part if entry.step <= step]
    if not kept:
        return part[-1].account.total
    return part[-1].account.total - kept[-1].account.total if kept[-1] is not part[-1] else Tally()
