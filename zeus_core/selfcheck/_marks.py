"""Marks in the stream of the device, which time instructions by the host's clock, beside CUDA's own events."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zeus_core.errors import NotSupportedError
from zeus_core.selfcheck._bench import Bench, Finding

_MAX_DIFFERENCE_SECONDS = 50e-6  # of a step: two marks and two events are four kernels of some microseconds


def check_marks(bench: Bench) -> Iterator[Finding]:
    """Time steps both ways, for longer than one anchor of the marks (4 s) serves."""
    compare = getattr(bench.load, "mark_errors_seconds", None)
    if compare is None:
        raise NotSupportedError("the load has no CUDA device")
    found = list(compare(bench.monitor.time_source, bench.seconds(12.0, 0.5)))
    if not found:
        raise NotSupportedError("no step was timed by marks")
    differences, lags, inside = (
        np.array([row[0] for row in found]),
        [row[1] for row in found],
        [row[2] for row in found],
    )
    low, median, high = 1e6 * np.quantile(differences, [0.05, 0.5, 0.95])
    yield Finding(
        "a step by marks, less that by events; median",
        float(median),
        "us",
        bool(np.median(np.abs(differences)) <= _MAX_DIFFERENCE_SECONDS),
        f"{len(found)} steps; 5 to 95 %: {low:.1f} to {high:.1f} us",
    )
    yield Finding(
        "marks whose time is after the host submitted them and before it saw them",
        100 * sum(inside) / len(inside),
        "%",
        all(inside),
        f"the host saw them {1e6 * float(np.median(lags)):.0f} us later, in the median",
    )
