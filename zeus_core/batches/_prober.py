"""Measures the passes of a training at a size of the micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from zeus_core.codec import encode
from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor

Check: TypeAlias = Callable[[tuple[int, int]], str | None]
"""Returns, for people, how the gradients of a step differ between two sizes; None if only by rounding."""

_MAX_RUNS = 10_000  # in one probe, if a pass takes less than the monitor can measure


class Prober:
    """Runs the passes of a training, and measures them.

    Args:
        run: Runs those of one micro-batch.
        check: Says how the gradients of two sizes differ; None if they do not.
        is_out_of_memory: Returns whether an error of it is one.
        release: Releases memory.
    """

    def __init__(
        self,
        run: Callable[[int], object],
        check: Check | None,
        is_out_of_memory: Callable[[Exception], bool],
        release: Callable[[], object],
    ) -> None:
        self._run = run
        self._check = check
        self._is_out_of_memory = is_out_of_memory
        self._release = release

    def probe(self, monitor: ZeusMonitor, size: int, batch_size: int, seconds: float) -> dict[str, Any]:
        """Return the measurement, the samples in it, and what the whole probe took; no measurement if out of memory."""
        begin = monitor.read()
        measured, samples = None, 0
        try:
            measured, samples = self._measure(monitor, size, batch_size, seconds)
        except Exception as error:
            if not self._is_out_of_memory(error):
                raise
        if measured is None:  # the error and its traceback, which holds tensors, are gone
            self._release()
        spent = monitor.between(begin, monitor.read())
        return {"measured": encode(measured), "samples": samples, "spent": encode(spent)}

    def check(self, sizes: tuple[int, int]) -> str | None:
        """Return how the gradients of two sizes differ; None if they do not, or one does not fit into memory."""
        try:
            return None if self._check is None else self._check(sizes)
        except Exception as error:
            if not self._is_out_of_memory(error):
                raise
        self._release()
        return None

    def _measure(self, monitor: ZeusMonitor, size: int, batch_size: int, seconds: float) -> tuple[Measurement, int]:
        self._run(size)  # prepares, compiles, and allocates the gradients
        begin = monitor.read()
        self._run(size)
        once = max(monitor.between(begin, monitor.read()).time, seconds / _MAX_RUNS)
        runs, per_step = math.ceil(seconds / once), batch_size // size
        if runs > per_step or per_step * once < 2 * seconds:  # whole steps: every size works on the same samples
            runs = math.ceil(runs / per_step) * per_step
        begin = monitor.read()
        for _ in range(runs):
            self._run(size)
        return monitor.between(begin, monitor.read()), runs * size


def is_memory_error(error: Exception) -> bool:
    """Return whether an error says that memory is used up; that of torch is known by its name."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
