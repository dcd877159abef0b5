"""The check of what processes have left changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from zeus_core.cli._restore import BY_ROOT
from zeus_core.cli.doctor.check import Check
from zeus_core.cli.text import readable

if TYPE_CHECKING:
    from zeus_core.device import Gpu
    from zeus_core.settings.entry import LedgerEntry

_NAME = "restored"


def check_residue(gpus: Sequence[Gpu]) -> Check:
    """Check that no process has left a GPU changed.

    Args:
        gpus: The visible GPUs.
    """
    from zeus_core.settings.entry import LedgerEntry
    from zeus_core.settings.ledger import known_ledgers

    found = [(ledger, item) for ledger in known_ledgers() for item in ledger.read()]
    entries = [item for _, item in found if isinstance(item, LedgerEntry)]
    stale = [item for ledger, item in found if isinstance(item, LedgerEntry) and ledger.is_stale(item)]
    left = [_words(entry, gpus) for entry in stale]
    left += [str(item) for _, item in found if not isinstance(item, LedgerEntry)]
    if left:
        return Check(_NAME, "limited", "; ".join(left), _remedy(stale))
    if entries:
        held = [f"{entry.device_name} ({entry.device_uuid}) is controlled by {entry.holder}" for entry in entries]
        return Check(_NAME, "ok", "; ".join(dict.fromkeys(held)))
    return Check(_NAME, "ok", "no process has left a GPU changed")


def _remedy(stale: Sequence[LedgerEntry]) -> str:
    """Return a command that restores. Root's own does not trust the ledger of another user."""
    if stale and os.geteuid() != 0 and all(entry.keeper is None and entry.uid != 0 for entry in stale):
        return " && ".join(entry.command for entry in stale)
    return BY_ROOT


def _words(entry: LedgerEntry, gpus: Sequence[Gpu]) -> str:
    failure = f", and could not be restored: {entry.failure}" if entry.failure else ""
    name = f"{entry.device_name} ({entry.device_uuid})"
    kind = entry.kind
    gpu = next((gpu for gpu in gpus if gpu.uuid == entry.device_uuid), None)
    value = None if gpu is None else readable(partial(kind.read, gpu))
    default = None if gpu is None else readable(partial(kind.read_default, gpu))
    in_force = f"the {kind.words}" if value is None else f"{kind.text(value)} in force"
    beside = "" if default is None else f", board default {kind.text(default)}"
    return f"{name}: {in_force}{beside}, original {kind.text(entry.original)}, left by {entry.holder}{failure}"
