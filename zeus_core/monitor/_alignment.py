"""Watching GPUs for a moment after a reading, to learn what their energy counters did not show at it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from zeus_core._process.parallel import ParallelCalls
from zeus_core.monitor._edge import Edge
from zeus_core.monitor._meter import Meter

__all__ = ["align"]

_STEP_SECONDS = 0.005
_LONGEST_SECONDS = 0.2  # counters step every 0.1 s or more often


def align(edges: list[Edge], meters: Sequence[Meter], together: ParallelCalls) -> None:
    """Complete the edges by what the GPUs show until their counters have stepped once more: takes up to 0.1 s.

    Args:
        edges: What each GPU said just now. An edge that becomes surer is replaced in place.
        meters: Those of the same GPUs.
        together: Calls several GPUs close together.
    """
    watched = {
        number: after for number, meter in enumerate(meters) if (after := meter.watch(edges[number])) is not None
    }
    give_up_at = time.monotonic() + _LONGEST_SECONDS
    while watched and time.monotonic() < give_up_at:
        time.sleep(_STEP_SECONDS)
        samples = together.call([meters[number].read for number in watched])
        for (number, after), sample in zip(watched.items(), samples, strict=True):
            pending = after.add(sample)
            if pending is not None:
                edges[number] = edges[number]._replace(pending=pending)
        watched = {number: after for number, after in watched.items() if not after.is_over}
