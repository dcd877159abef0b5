"""The ranks of a search for one setting of all their GPUs, and the facts they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.knobs._kinds import KnobKind

__all__ = ["RankInformation", "SearchGroup"]


@dataclass(frozen=True)
class RankInformation:
    """The facts about one rank that the others need.

    Attributes:
        arguments: The arguments of its optimizer that must be the same on all ranks, by name.
        settings: The settings to try on its GPUs, highest first.
        gpu_names: The names of its GPUs, by UUID.
    """

    arguments: Mapping[str, int | str]
    settings: tuple[int, ...]
    gpu_names: Mapping[str, str]


@dataclass(frozen=True)
class SearchGroup:
    """All ranks that search together.

    Attributes:
        settings: The settings to try, from the original one downwards; see `KnobKind.common_settings`.
        gpu_names: The name of each GPU, once per GPU however many ranks use it.
    """

    settings: tuple[int, ...]
    gpu_names: tuple[str, ...]

    @classmethod
    def from_ranks(cls, ranks: Sequence[RankInformation], kind: KnobKind) -> SearchGroup:
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
        names_by_uuid = {uuid: name for information in ranks for uuid, name in information.gpu_names.items()}
        settings = kind.common_settings([information.settings for information in ranks])
        return cls(settings, tuple(names_by_uuid.values()))
