"""The ledgers, asked for a GPU: which other process changes it, and what processes that were killed have left."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from functools import partial

from zeus_core.device import Gpu
from zeus_core.device._retry import retried
from zeus_core.device.nvml._gpu import NvmlGpu
from zeus_core.knobs._holders import holders
from zeus_core.leases._entry import KnobName, LedgerEntry
from zeus_core.leases._ledger import known_ledgers
from zeus_core.leases._process_identity import ProcessIdentity
from zeus_core.leases._restoring import restore_entry

__all__ = ["find_other_holder", "is_shared", "read_original_limit_watts", "restore_residue", "setting_key"]

_logger = logging.getLogger(__name__)


def find_other_holder(gpu: Gpu, process: ProcessIdentity) -> LedgerEntry | None:
    """Return the entry of a process other than this one that changes a GPU; None if no ledger has any."""
    for ledger in known_ledgers():
        for entry in ledger.entries():
            if entry.device_uuid == gpu.uuid and entry.owner != process and not entry.is_stale():
                return entry
    return None


def read_original_limit_watts(gpu: Gpu) -> float:
    """Read the power limit of a GPU, after what processes that were killed have left there was restored.

    Where another object or another process changes it, the original is the one that this one knows.

    Raises:
        DeviceError: It cannot be read.
    """
    key = setting_key(gpu, "power_limit")
    holding = holders.find(key)
    if holding is not None and (original_watts := holding.originals[key]) is not None:
        return original_watts
    restore_residue(gpu)
    if is_shared(gpu):
        for ledger in known_ledgers():
            entry = ledger.find((gpu.uuid, "power_limit"))
            if entry is not None and entry.original is not None and not entry.is_stale():
                return entry.original
    return retried(gpu.read_power_limit_watts)


def restore_residue(gpu: Gpu) -> None:
    """Restore what processes that were killed have left on a GPU, and say so. Never raises."""
    if not is_shared(gpu):
        return
    for ledger in known_ledgers():
        for outcome in ledger.restore_all(
            partial(restore_entry, gpu), lambda entry: entry.device_uuid == gpu.uuid and entry.is_stale()
        ):
            _logger.warning("%s. It was left by %s", outcome, outcome.entry.holder)


def setting_key(gpu: Gpu, knob: KnobName) -> Hashable:
    """Return what tells a kind of setting of a GPU from all others in this process."""
    return (gpu.uuid if is_shared(gpu) else id(gpu), knob)


def is_shared(gpu: Gpu) -> bool:
    """Return whether other processes can reach a GPU, whose settings stay when this process ends."""
    return isinstance(gpu, NvmlGpu)
