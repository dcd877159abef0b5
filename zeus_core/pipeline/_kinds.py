"""The kinds of instruction a training pipeline is made of."""

from __future__ import annotations

from zeus_core.errors import UsageError

__all__ = ["COMPUTE_KINDS", "FIXED_KINDS", "TRANSFER_KINDS", "check_kind"]

COMPUTE_KINDS = ("forward", "backward", "backward-input", "backward-weight", "recompute")
"""Work whose clock is chosen: a profile has several options for each."""

FIXED_KINDS = ("communication", "optimizer-step", "all-reduce")
"""Work of one fixed duration: a profile has exactly one option for each."""

TRANSFER_KINDS = ("send-activation", "receive-activation", "send-gradient", "receive-gradient")
"""The two ends of a communication in a schedule. They take no time of the rank; the `communication`
between them may."""


def check_kind(kind: object, known: tuple[str, ...], where: str) -> str:
    """The kind, if it is one of `known`.

    Raises:
        UsageError: It is not; the message begins with `where`.
    """
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(f"{where}: {kind!r} is not a kind of instruction; use one of {', '.join(known)}")
    return kind
