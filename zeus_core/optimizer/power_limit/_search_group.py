"""The ranks of a search for a power limit, and the facts they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from zeus_core.device import Gpu, PowerRange
from zeus_core.errors import UsageError
from zeus_core.knobs._power_limit import power_limit_settings
from zeus_core.optimizer.power_limit._phases import StepCounts

__all__ = ["RankInformation", "SearchGroup"]


@dataclass(frozen=True)
class RankInformation:
    """The facts about one rank that the others need.

    Attributes:
        arguments: The arguments of its optimizer that must be the same on all ranks, by name.
        range_watts: The lowest and the highest limit to try on its GPUs.
        gpu_names: The names of its GPUs, by UUID.
    """

    arguments: Mapping[str, int]
    range_watts: PowerRange
    gpu_names: Mapping[str, str]

    @classmethod
    def from_gpus(
        cls, counts: StepCounts, step_watts: int, settings: Sequence[int], gpus: Sequence[Gpu]
    ) -> RankInformation:
        """Describe a rank by its step counts, and by the settings of its GPUs, highest first."""
        return cls(
            {**asdict(counts), "pl_step": step_watts},
            PowerRange(settings[-1], settings[0]),
            {gpu.uuid: gpu.name for gpu in gpus},
        )


@dataclass(frozen=True)
class SearchGroup:
    """All ranks that search together.

    Attributes:
        settings: The power limits to try in watts, from the highest original limit of any rank to the lowest limit of
            any board.
        gpu_names: The name of each GPU, once per GPU however many ranks use it.
    """

    settings: tuple[int, ...]
    gpu_names: tuple[str, ...]

    @classmethod
    def from_ranks(cls, ranks: Sequence[RankInformation]) -> SearchGroup:
        """Form the group of some ranks.

        Raises:
            UsageError: Their arguments differ.
        """
        first_arguments = ranks[0].arguments
        for rank, information in enumerate(ranks):
            _check_alike(first_arguments, information.arguments, rank)
        names_by_uuid = {uuid: name for information in ranks for uuid, name in information.gpu_names.items()}
        ranges = [information.range_watts for information in ranks]
        return cls(power_limit_settings(ranges, first_arguments["pl_step"]), tuple(names_by_uuid.values()))


def _check_alike(first: Mapping[str, int], other: Mapping[str, int], rank: int) -> None:
    for argument, value in first.items():
        if other[argument] != value:
            raise UsageError(
                f"{argument} is {value} on rank 0 and {other[argument]} on rank {rank}; give every rank the same"
            )
