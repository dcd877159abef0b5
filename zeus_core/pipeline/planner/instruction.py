"""Instructions: the pieces of work of a pipeline iteration, and their kinds."""

from __future__ import annotations

from typing import NamedTuple

from zeus_core._validate import shown
from zeus_core.errors import UsageError

__all__ = [
    "BLOCKING_KIND",
    "COMPUTE_KINDS",
    "FIXED_KINDS",
    "PROFILED_KINDS",
    "SCHEDULED_KINDS",
    "TRANSFER_KINDS",
    "Instruction",
    "check_kind",
]

COMPUTE_KINDS = ("forward", "backward", "backward-input", "backward-weight", "recompute")
"""Work whose clock is chosen: a profile has several options for each kind."""

FIXED_KINDS = ("communication", "optimizer-step", "all-reduce")
"""Work of one fixed duration: a profile has exactly one option for each kind."""

BLOCKING_KIND = "blocking"
"""No work: the power of a GPU that waits for a neighbour at each clock. A profile has one option or more, or none."""

PROFILED_KINDS = (*COMPUTE_KINDS, *FIXED_KINDS, BLOCKING_KIND)
"""The kinds that a profile may contain."""

TRANSFER_KINDS = ("send-activation", "receive-activation", "send-gradient", "receive-gradient")
"""The two ends of a communication in a schedule. They take no time of the rank; the communication may."""

SCHEDULED_KINDS = (*COMPUTE_KINDS, *(kind for kind in FIXED_KINDS if kind != "communication"), *TRANSFER_KINDS)
"""The kinds that a schedule may contain."""


class Instruction(NamedTuple):
    """One piece of work of an iteration.

    Attributes:
        kind: One of `COMPUTE_KINDS`, `optimizer-step`, `all-reduce`, or one of `TRANSFER_KINDS`.
        stage: Its stage.
        microbatch: Its microbatch; a running number for an optimizer step or an all-reduce.
    """

    kind: str
    stage: int
    microbatch: int = 0

    def __str__(self) -> str:
        return f"{self.kind} of stage {self.stage}, microbatch {self.microbatch}"


def check_kind(kind: object, known: tuple[str, ...], where: str) -> str:
    """Return a kind of instruction that is one of those known.

    Raises:
        UsageError: It is not; the message begins with `where`.
    """
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(f"{where}: {shown(kind)} is not a kind of instruction; use one of {', '.join(known)}")
    return kind
