"""When instructions can start, and must: the longest paths through the dependency graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeus_core.pipeline._compiled import kernels
from zeus_core.pipeline._dependencies import DependencyGraph, Numbers

__all__ = ["earliest_starts"]


def earliest_starts(
    graph: DependencyGraph, arc_delay_seconds: Numbers, durations: Numbers, releases: Numbers | None = None
) -> Numbers:
    """When each instruction starts, if each starts as soon as it can, [instructions].

    Args:
        graph: What waits for what.
        arc_delay_seconds: What lies between the instructions of each arc. [graph arcs]
        durations: How long each instruction takes. [instructions]
        releases: Before which times none starts; 0 if None. [instructions]
    """
    starts = np.zeros(len(durations)) if releases is None else releases.astype(np.float64)
    _KERNELS.call(_earliest_starts, graph.first_arc, graph.arc_from, arc_delay_seconds, durations, starts)
    return starts


def _earliest_starts(first_arc: Any, arc_from: Any, delay: Any, durations: Any, starts: Any) -> None:
    for it in range(len(durations)):
        start = starts[it]
        for arc in range(first_arc[it], first_arc[it + 1]):
            start = max(start, starts[arc_from[arc]] + durations[arc_from[arc]] + delay[arc])
        starts[it] = start


_KERNELS = kernels(_earliest_starts)
