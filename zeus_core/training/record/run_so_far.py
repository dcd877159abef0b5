"""A run so far, as its first rank knows it, for the file of the run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from zeus_core.training._ranks import Ranks
from zeus_core.training._run_part import RunPart
from zeus_core.training.account import Account
from zeus_core.training.record.run_file import RunRecord
from zeus_core.training.record.run_keeper import Outcome, electricity_record

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity


def run_so_far(
    part: RunPart, ranks: Ranks, outcome: Outcome, electricity: Electricity | None, has_ended: bool, now: float
) -> RunRecord:
    """Return the record of a run with its latest part alone.

    Args:
        part: The latest part.
        ranks: The ranks.
        outcome: All that is known beside the account.
        electricity: By which emissions and cost are reported; None without.
        has_ended: Whether the part ended by itself.
        now: This moment, by the machine's clock.
    """
    reports = part.reports | {ranks.rank: part.report(has_power=True)}
    told = part.own if ranks.size == 1 else (part.told or part.own)
    if has_ended and ranks.size > 1 and not part.is_whole:
        told = _known_at_end(part, ranks)
    record = part.record(outcome, reports, has_ended, now)
    saving = outcome.saving_fraction, outcome.saving_uncertainty
    return RunRecord(part.run, part.earlier + told, (record,), *saving, electricity_record(electricity))


def _known_at_end(part: RunPart, ranks: Ranks) -> Account:
    """Return the account of all ranks where training has ended by an error: the others have not reported their last."""
    others_watts = part.split.max_watts * (ranks.gpu_count - len(part.ranks[0].devices))
    most_joules = others_watts * max(part.own.total.seconds - part.told_seconds, 0.0)
    known = most_joules if math.isfinite(most_joules) else None
    return replace(ranks.with_others(part.own, part.others), interruptions=1, unrecorded_joules=known)
