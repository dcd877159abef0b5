"""The facts of the GPUs of a job that its trials depend on, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zeus_core.device import Gpu
from zeus_core.device.gpu import read_or_none
from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.kinds import POWER_LIMIT
from zeus_core.optimizer.trial_store import Conditions
from zeus_core.search.objectives import OptimumSelector
from zeus_core.settings.holders import read_original


@dataclass(frozen=True)
class GpuFacts:
    """The facts of a GPU that trials on it depend on.

    Attributes:
        name: The product name.
        driver: The version of the driver; None if it is unknown.
        original_limit_watts: The original power limit; None if the GPU reports none.
    """

    name: str
    driver: str | None
    original_limit_watts: float | None


def conditions_on(gpus: Sequence[GpuFacts], knob: str, work: Mapping[str, int | str]) -> Conditions:
    """Return the conditions of trials on some GPUs, in any order, for some work."""
    gpus = sorted(gpus, key=str)
    drivers = sorted({gpu.driver for gpu in gpus if gpu.driver is not None})
    limits_watts = tuple(gpu.original_limit_watts for gpu in gpus)
    return Conditions(tuple(gpu.name for gpu in gpus), tuple(drivers), limits_watts, knob, work)


def facts_of_gpu(gpu: Gpu) -> GpuFacts:
    """Read the facts of a GPU.

    Raises:
        DeviceError: They cannot be read.
    """
    try:
        original_watts: float | None = read_original(gpu, POWER_LIMIT)
    except NotSupportedError:
        original_watts = None
    return GpuFacts(gpu.name, read_or_none(gpu.read_driver_version), original_watts)


def with_power(selector: OptimumSelector, gpus: Sequence[GpuFacts]) -> OptimumSelector:
    """Return a selector that knows the highest original power limit of some GPUs, where the settings are no power.

    Raises:
        UsageError: It needs that, and no GPU reports one.
    """
    if not selector.needs_max_power:
        return selector
    limits_watts = [gpu.original_limit_watts for gpu in gpus if gpu.original_limit_watts is not None]
    if not limits_watts:
        raise UsageError("the GPUs report no power limit: pass ZeusCost(max_power_watts=...), the highest power of one")
    return selector.completed(max(limits_watts))
