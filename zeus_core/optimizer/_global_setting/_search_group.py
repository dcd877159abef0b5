"""The ranks of a search for one setting of all their GPUs, and the facts they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zeus_core.device import Gpu
from zeus_core.device._gpu import read_driver_version
from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.optimizer._trial_store import Conditions
from zeus_core.search._objectives import OptimumSelector
from zeus_core.settings.holders import read_original
from zeus_core.settings.kinds import POWER_LIMIT, Kind

__all__ = ["GpuFacts", "RankInformation", "SearchGroup", "conditions_on", "facts_of_gpu", "with_power"]


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


@dataclass(frozen=True)
class RankInformation:
    """The facts about one rank that the others need.

    Attributes:
        arguments: The arguments of its optimizer that must be the same on all ranks, by name.
        settings: The settings to try on its GPUs, highest first.
        gpus: The facts of its GPUs, by UUID.
    """

    arguments: Mapping[str, int | str]
    settings: tuple[int, ...]
    gpus: Mapping[str, GpuFacts]


@dataclass(frozen=True)
class SearchGroup:
    """All ranks that search together.

    Attributes:
        settings: The settings to try, from the original one downwards; see `Kind.common_settings`.
        gpus: The facts of each GPU, once per GPU however many ranks use it.
        ranks: The number of ranks.
    """

    settings: tuple[int, ...]
    gpus: tuple[GpuFacts, ...]
    ranks: int

    @classmethod
    def from_ranks(cls, ranks: Sequence[RankInformation], kind: Kind) -> SearchGroup:
        """Form the group of some ranks.

        Raises:
            UsageError: Their arguments differ.
        """
        first_arguments = ranks[0].arguments
        for rank, information in enumerate(ranks):
            for argument, value in first_arguments.items():
                if information.arguments[argument] != value:
                    raise UsageError(
                        f"{argument} is {value} on rank 0 and {information.arguments[argument]} on rank {rank}; "
                        "give every rank the same"
                    )
        gpus_by_uuid = {uuid: facts for information in ranks for uuid, facts in information.gpus.items()}
        settings = kind.common_settings([information.settings for information in ranks])
        return cls(settings, tuple(gpus_by_uuid.values()), len(ranks))

    def conditions(self, kind: Kind, work: Mapping[str, int | str]) -> Conditions:
        """Return the conditions of the trials of this group, for some work."""
        return conditions_on(self.gpus, kind.words, {**work, "ranks": self.ranks})

    @property
    def original_limit_watts(self) -> float | None:
        """The highest original power limit of a GPU; None if none reports one."""
        limits_watts = [gpu.original_limit_watts for gpu in self.gpus if gpu.original_limit_watts is not None]
        return max(limits_watts, default=None)


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
    return GpuFacts(gpu.name, read_driver_version(gpu), original_watts)


def with_power(selector: OptimumSelector, original_watts: float | None) -> OptimumSelector:
    """Return a selector that knows the highest power of a GPU, where the settings are none.

    Raises:
        UsageError: Nobody knows it.
    """
    if not selector.needs_max_power:
        return selector
    if original_watts is None:
        raise UsageError("the GPUs report no power limit: pass ZeusCost(max_power_watts=...), the highest power of one")
    return selector.completed(original_watts)
