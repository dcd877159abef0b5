"""What a GPU says at one moment: an edge of a window, or a sample between edges."""

from __future__ import annotations

from typing import NamedTuple

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, NotSupportedError
from zeus_core.ports import TimeSource

__all__ = ["Edge", "RunningEnergy", "read_edge"]


class RunningEnergy(NamedTuple):
    """The energy up to a moment, since an arbitrary one, and how far it can be off, in joules."""

    energy_joules: float
    doubt_joules: float


class Edge(NamedTuple):
    """What one GPU said at one moment.

    Attributes:
        at: When, in seconds of the monitor's clock.
        counter_joules: The energy counter; None if the GPU has none.
        power_watts: The power at that moment; None if it could not be read.
        fault: Why nothing could be read; None if all went well.
        running: The integral of power up to then; None if nothing is integrated.
        pending: What the counter did not show yet; None if that is not known. See `align`.
    """

    at: float
    counter_joules: float | None
    power_watts: float | None
    fault: str | None = None
    running: RunningEnergy | None = None
    pending: RunningEnergy | None = None


def read_edge(gpu: Gpu, has_counter: bool, time_source: TimeSource) -> Edge:
    """Read the counter, if there is one, and the power of a GPU: two driver calls. A fault is part of the answer."""
    at = time_source.now()
    counter_joules = None
    if has_counter:
        try:
            counter_joules = gpu.read_energy_counter_joules()
        except DeviceError as error:
            return Edge(at, None, None, str(error))
    try:
        return Edge(at, counter_joules, gpu.read_power_watts())
    except NotSupportedError:
        return Edge(at, counter_joules, None)
    except DeviceError as error:
        return Edge(at, counter_joules, None, None if has_counter else str(error))
