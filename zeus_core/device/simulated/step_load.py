"""The work of a simulated GPU while a loop computes elsewhere: each step is a piece as long as the loop's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeus_core.device.simulated.power_model import Work
from zeus_core.units import duration_text

if TYPE_CHECKING:
    from zeus_core.device.simulated.simulated_gpu import SimulatedGpu

_STEPS = 3  # whose median is taken: the first one of a loop also loads and compiles, or is seen in part
# Of the default limit: a training that is bound by its limit, as GPT-3 on an A100 (485 of 400 W) is.
_ACTIVE_SHARE, _ACTIVE_FRACTION, _COMPUTE_BOUND = 1.2, 0.94, 0.74


class SimulatedSteps:
    """Gives a simulated GPU work in each step, unless a program submits its own.

    Without it the GPU would idle through a whole training, and a search would find the lowest limit best.

    Args:
        gpu: The GPU.
    """

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self.work: Work | None = None
        """The work of a step; None until the first step has ended."""
        self._own_seconds: list[float] = []  # of the first steps, without the simulated work
        self._began: float | None = None
        self._submitted = 0

    def begin(self) -> None:
        """Begin a step; nothing if one is under way."""
        if self._began is not None or self._is_off:
            return
        self._began = self._gpu._time_source.now()
        if self.work is not None:
            self._submitted += 1
            self._gpu.submit(self.work)

    def end(self) -> None:
        """End the step, once its simulated work is done."""
        began, self._began = self._began, None
        if began is None or self._is_off:
            return
        if len(self._own_seconds) < _STEPS:
            self._own_seconds.append(max(self._gpu._time_source.now() - began, 1e-3))
        self._gpu.synchronize()
        watts = _ACTIVE_SHARE * self._gpu.preset.default_limit_watts
        seconds = sorted(self._own_seconds)[len(self._own_seconds) // 2]
        self.work = Work(seconds, watts, _ACTIVE_FRACTION, _COMPUTE_BOUND)

    @property
    def _is_off(self) -> bool:
        """Whether a program submits work of its own: from then on it does all."""
        return self._gpu.submitted > self._submitted

    def rows(self) -> dict[str, str]:
        """Return a labelled line that says that the work of a training did not run here; nothing if it did."""
        if self.work is None or self._is_off:
            return {}
        seconds, watts = duration_text(self.work.seconds), f"{self.work.active_power_watts:.0f} W"
        return {"simulated": f"the work did not run on it; each step counts as {seconds} of work that wants {watts}"}
