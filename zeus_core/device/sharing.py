"""Which processes compute on a GPU, and whether others do beside this one."""

import math
import os
from collections.abc import Collection
from contextlib import suppress

from zeus_core._identity import THIS_MACHINE
from zeus_core.device.gpu import Gpu, read_or_none

# Between two looks at whose processes compute on a GPU, which take the driver milliseconds. Until ours are seen it is
# less at first, and doubles: in many containers they never are.
_LOOK_SECONDS, _FIRST_LOOK_SECONDS = 10.0, 1.0


def identities_on(gpu: Gpu) -> set[tuple[int, int]] | None:
    """Return the processes on a GPU, each with when it began; None where the driver does not say."""
    process_ids = read_or_none(gpu.read_process_ids)
    if process_ids is None:
        return None
    found = set()
    for process_id in process_ids:
        with suppress(OSError, ValueError, IndexError):  # it has ended
            found.add((process_id, THIS_MACHINE.start_ticks(process_id)))
    return found


def count_others(gpu: Gpu, is_rank: bool = False) -> int | None:
    """Count the processes that compute on a GPU beside this one and those that it has begun. Never raises.

    Args:
        gpu: The GPU.
        is_rank: Whether this process is one of several ranks of this machine: the others of its parent are its job's.

    Returns:
        None where it is not known: the driver does not say, or it lists no process of ours, as before we compute, or
        in a container, where processes may have other ids.
    """
    roots = {os.getpid(), os.getppid()} if is_rank else {os.getpid()}
    process_ids = set(read_or_none(gpu.read_process_ids) or ())
    ours = {process_id for process_id in process_ids if _is_below(process_id, roots)}
    return len(process_ids - ours) if ours else None


class Sharing:
    """Looks now and then how many other processes compute on a GPU.

    Args:
        gpu: The GPU.
        is_rank: Whether this process is one of several ranks of this machine; see `count_others`.
    """

    def __init__(self, gpu: Gpu, is_rank: bool = False) -> None:
        self._gpu, self._is_rank = gpu, is_rank
        self._most = 0  # seen at once
        self._look_at, self._wait_seconds = -math.inf, _FIRST_LOOK_SECONDS

    def look(self, now: float) -> None:
        """Look, if that is due at this time in seconds. Never raises."""
        if self._look_at <= now:
            others = count_others(self._gpu, self._is_rank)
            self._look_at = now + (self._wait_seconds if others is None else _LOOK_SECONDS)
            self._wait_seconds = min(2 * self._wait_seconds, _LOOK_SECONDS)
            self._most = max(self._most, others or 0)

    @property
    def remark(self) -> str | None:
        """Say to people that the GPU was shared; None if no others were seen."""
        if self._most == 0:
            return None
        others = "another process" if self._most == 1 else f"{self._most} other processes"
        return f"{others} computed on it meanwhile, and the energy is that of all"


def _is_below(process_id: int, roots: Collection[int]) -> bool:
    """Return whether a process is one of some, or was begun by one of them."""
    try:
        while process_id > 1 and process_id not in roots:
            process_id = THIS_MACHINE.parent(process_id)
    except (OSError, ValueError, IndexError):  # it has ended, or this system has no /proc
        return False
    return process_id in roots
