"""Boards in MIG mode, whose instances share one power limit and one clock: a change reaches the work of others."""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any

from zeus_core.errors import DeviceError, PermissionDeniedError

__all__ = ["check_board_sharing"]

_MIG_VARIABLE = "ZEUS_MIG_LIMITS"
_SHOWN_PROCESSES = 4  # an instance can have 48 of them (NVIDIA MPS)

_logger = logging.getLogger(__name__)


def check_board_sharing(gpu: Any, process_id: int | None = None, is_allowed: bool = False) -> None:
    """Log what a change of a GPU means for others if its board is in MIG mode, or refuse the change.

    Only the processes that compute at this moment are known. A change is not refused where they cannot be read.

    Args:
        gpu: A `Gpu`. Only one that is read through NVML can be in MIG mode.
        process_id: The process for which the daemon makes the change; None if this process makes it for itself.
        is_allowed: Whether the administrator of the daemon allows changes that reach others. A process allows them
            itself, by `ZEUS_MIG_LIMITS=1`.

    Raises:
        PermissionDeniedError: Another process computes on another instance, and the change is not allowed.
    """
    read_others = getattr(gpu, "read_other_mig_processes", None)
    if read_others is None:
        return
    way_to_allow = "allow it in the TOML file of the zeus-core daemon: may_slow_other_instances = true"
    if process_id is None:
        process_id, is_allowed = os.getpid(), os.environ.get(_MIG_VARIABLE) == "1"
        way_to_allow = f"set {_MIG_VARIABLE}=1"
    board = f"{gpu.name} ({gpu.uuid}) is in MIG mode: a power limit or a clock holds for all its instances"
    try:
        others = read_others(process_id)
    except DeviceError as error:
        _warn_once(f"{board}. Which processes compute on the others cannot be read: {error}")
        return
    if others is None:
        return
    if not others:
        _warn_once(f"{board}. No process computes on another one now")
        return
    more = f", and {len(others) - _SHOWN_PROCESSES} more" if len(others) > _SHOWN_PROCESSES else ""
    named = ", ".join(map(str, others[:_SHOWN_PROCESSES])) + more
    if not is_allowed:
        raise PermissionDeniedError(f"{board}, and would slow down {named}. To change it all the same, {way_to_allow}")
    _warn_once(f"{board}, and slows down {named}")


@lru_cache(maxsize=64)  # several leases of a process begin with one board
def _warn_once(text: str) -> None:
    _logger.warning("%s", text)
