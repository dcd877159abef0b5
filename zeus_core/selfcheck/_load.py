"""Loads for the GPU: training steps of torch, or of the simulation where there is no torch."""

from __future__ import annotations

import importlib.util
from typing import Protocol

from zeus_core.device import Gpu, SimulatedGpu, Work
from zeus_core.errors import NotSupportedError

# A step of the order of a training step that is worth hooks: long beside them, short beside a check of some seconds.
_STEP_SECONDS = 0.02
_BUSY_FRACTION_OF_LIMIT = 0.7


class Load(Protocol):
    """Work for a GPU.

    Attributes:
        name: The work, and the device that it runs on, for the report.
        steps_in_queue: How many steps to submit before the next `synchronize`, so that the device never waits.
    """

    name: str
    steps_in_queue: int

    def step(self) -> None:
        """Submit one training step; it may end later."""
        ...

    def synchronize(self) -> None:
        """Wait until everything submitted has ended."""
        ...

    def block(self, seconds: float) -> None:
        """Have the GPU wait for something, as in a collective, and return when that has ended.

        Raises:
            NotSupportedError: This device cannot.
        """
        ...


class SimulatedLoad:
    """Steps of a simulated GPU, without torch."""

    steps_in_queue = 4

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.name: str = "simulated steps, without torch"
        self._gpu = gpu
        self._work = Work(_STEP_SECONDS, _BUSY_FRACTION_OF_LIMIT * gpu.preset.limit_range_watts.highest_watts)

    def step(self) -> None:
        """Submit a step."""
        self._gpu.submit(self._work)

    def synchronize(self) -> None:
        """Wait for the simulated GPU."""
        self._gpu.synchronize()

    def block(self, seconds: float) -> None:
        """Refuse: a simulated GPU without work draws its blocking power already."""
        raise NotSupportedError("a simulated GPU draws its blocking power when idle")


def find_load(gpu: Gpu) -> Load:
    """Return the most real load that this machine can run.

    Raises:
        NotSupportedError: There is no torch, and the GPU is not simulated.
    """
    if importlib.util.find_spec("torch") is not None:
        from zeus_core.selfcheck.check_load import TorchLoad

        return TorchLoad(gpu)
    if isinstance(gpu, SimulatedGpu):
        return SimulatedLoad(gpu)
    raise NotSupportedError("torch is not installed, so that there is no load: pip install torch")
