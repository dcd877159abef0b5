"""The two edges of a window on one GPU, and the energy between them."""

from dataclasses import dataclass

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, NotSupportedError
from zeus_core.records import Method

__all__ = ["Edge", "GpuEnergy", "energy_between", "read_edge"]


@dataclass(frozen=True, slots=True)
class Edge:
    """What one GPU said at one edge of a window.

    Attributes:
        counter_joules: The energy counter; None if the GPU has none.
        power_watts: The power at that moment; None if it could not be read.
        fault: Why nothing could be read; None if all went well.
    """

    counter_joules: float | None
    power_watts: float | None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class GpuEnergy:
    """The energy of one GPU in one window, how it was obtained and how far it can be off; see `Measurement`."""

    energy_joules: float | None
    method: Method
    uncertainty_joules: float | None
    lost_because: str | None = None


def read_edge(gpu: Gpu) -> Edge:
    """Read the counter and the power of a GPU. Never raises: a fault is part of the answer."""
    try:
        counter_joules = gpu.read_energy_counter_joules()
    except NotSupportedError:
        counter_joules = None
    except DeviceError as error:
        return Edge(None, None, str(error))
    try:
        return Edge(counter_joules, gpu.read_power_watts())
    except NotSupportedError:
        return Edge(counter_joules, None)
    except DeviceError as error:
        return Edge(counter_joules, None, None if counter_joules is not None else str(error))


def energy_between(begin: Edge, end: Edge, elapsed_seconds: float, counter_period_seconds: float) -> GpuEnergy:
    """The energy of a GPU between two edges.

    The counter shows the energy as of its latest step, so each edge can hide up to one period of power. A window in
    which the counter did not step is estimated from the power at its edges.
    """
    fault = begin.fault or end.fault
    if fault is not None:
        return _lost(fault)
    powers_watts = [power for power in (begin.power_watts, end.power_watts) if power is not None]
    if begin.counter_joules is None or end.counter_joules is None or begin.counter_joules == end.counter_joules:
        return _estimate(powers_watts, elapsed_seconds)
    if end.counter_joules < begin.counter_joules:
        return _lost(
            f"the energy counter went back from {begin.counter_joules:g} to {end.counter_joules:g} J, "
            "as it does when the driver is loaded again"
        )
    energy_joules = end.counter_joules - begin.counter_joules
    edge_power_watts = max([energy_joules / elapsed_seconds, *powers_watts])
    return GpuEnergy(energy_joules, "counted", edge_power_watts * counter_period_seconds)


def _estimate(powers_watts: list[float], elapsed_seconds: float) -> GpuEnergy:
    if not powers_watts:
        return _lost("the GPU has neither an energy counter that steps nor a power reading")
    energy_joules = sum(powers_watts) / len(powers_watts) * elapsed_seconds
    return GpuEnergy(energy_joules, "estimated", energy_joules)


def _lost(reason: str) -> GpuEnergy:
    return GpuEnergy(None, "lost", None, reason)
