"""Continues an interrupted run, or begins a new one."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace

from zeus_core.codec import decode, encode
from zeus_core.documents import Document
from zeus_core.training._ranks import Ranks
from zeus_core.training.account import Account
from zeus_core.training.record.journal import Journal, earlier_account
from zeus_core.training.record.journal_lines import Entry


@dataclass(frozen=True)
class Checkpoint:
    """The energy of a run at the moment of a checkpoint.

    Attributes:
        run: The name of the run, by which the journals know it.
        world_size: The number of ranks of the job.
        account: The account of all ranks as of the latest log, for a run whose journals are not at hand.
    """

    run: str
    world_size: int
    account: Account


CHECKPOINT = Document("zeus-core energy", 4, Checkpoint)

_logger = logging.getLogger(__name__)


def take_up_run(
    step: int, checkpoint: Checkpoint | None, journal: Journal | None, ranks: Ranks, now_seconds: float
) -> tuple[str, Account]:
    """Return the name of the run, and the account of all ranks before this part: a collective call.

    Args:
        step: The optimizer step training begins at; 0 begins a new run.
        checkpoint: The state in the checkpoint of that step, of which the first rank's counts; None if there is none.
        journal: The journals of the run; None without any.
        ranks: The ranks.
        now_seconds: The clock, in seconds since 1970.

    Raises:
        WorldError: A rank failed, or did not answer in time.
    """
    name, document = ranks.decide(lambda: (uuid.uuid4().hex, checkpoint and CHECKPOINT.to_json(checkpoint)))
    if step == 0:
        return name, Account()
    if document is None:
        _logger.warning(
            "training resumes at step %d from a checkpoint with no energy state: the totals exclude what was spent "
            "before it",
            step,
        )
        return name, Account()
    checkpoint = CHECKPOINT.from_json(document)
    if checkpoint.world_size != ranks.size:
        _logger.warning(
            "training resumes with %d ranks from a checkpoint of %d: the totals include what was spent before only as "
            "far as its journals can be found",
            ranks.size,
            checkpoint.world_size,
        )
    return checkpoint.run, _earlier(step, checkpoint, journal, ranks, now_seconds)


def _earlier(step: int, checkpoint: Checkpoint, journal: Journal | None, ranks: Ranks, now_seconds: float) -> Account:
    """Return the account in the journals; if there are none, the one in the checkpoint."""

    def journalled() -> object:
        if journal is None:
            return None
        known = earlier_account(journal.read(checkpoint.run), checkpoint.run, step, now_seconds)
        return known and encode(known)

    accounts = ranks.gather_first(journalled) or []

    def added_up() -> object:
        known = [decode(Account, fields) for fields in accounts if fields is not None]
        return encode(Account.from_ranks(known)) if known else None

    known = ranks.decide(added_up)
    if known is not None:
        return decode(Account, known)
    _logger.warning(
        "there is no energy journal of this run here: the totals exclude what was spent after the checkpoint of step "
        "%d",
        step,
    )
    before = checkpoint.account
    account = replace(before, interruptions=before.interruptions + 1, unrecorded_joules=None)
    if journal is not None and ranks.rank == 0:  # for the parts to come
        journal.append(Entry(checkpoint.run, "before", 0, step, account, now_seconds, is_end=True))
    return account
