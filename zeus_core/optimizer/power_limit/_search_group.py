"""What the ranks of a search for a power limit must know of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zeus_core._codec import decode, encode
from zeus_core.device import Gpu, PowerRange
from zeus_core.errors import UsageError
from zeus_core.knobs._power_limit import power_limit_settings
from zeus_core.optimizer.power_limit._phases import StepCounts
from zeus_core.search import Trial

__all__ = ["Job", "job_of", "rank_information", "trials_from_json", "trials_to_json"]


@dataclass(frozen=True)
class Job:
    """What the ranks know once they have introduced themselves.

    Attributes:
        settings: The power limits to try in watts, from the highest found on any rank to the lowest of any board.
        gpu_names: Of each GPU once, however many ranks use it.
    """

    settings: tuple[int, ...]
    gpu_names: tuple[str, ...]


def rank_information(
    counts: StepCounts, step_watts: int, settings: Sequence[int], gpus: Sequence[Gpu]
) -> dict[str, Any]:
    """What the others must know of a rank, in JSON's types.

    Args:
        counts: How long it stays in each phase.
        step_watts: The distance it was given between two limits.
        settings: The limits of its own GPUs, highest first.
        gpus: Its GPUs.
    """
    return {
        "arguments": {**asdict(counts), "pl_step": step_watts},
        "range_watts": [settings[-1], settings[0]],
        "gpu_names": {gpu.uuid: gpu.name for gpu in gpus},
    }


def job_of(rank_informations: Sequence[Mapping[str, Any]]) -> Job:
    """The job of the ranks that have introduced themselves.

    Raises:
        UsageError: Their arguments differ.
    """
    for rank, other in enumerate(rank_informations):
        _check_alike(rank_informations[0]["arguments"], other["arguments"], rank)
    ranges = [PowerRange(*it["range_watts"]) for it in rank_informations]
    names_by_uuid = {uuid: name for it in rank_informations for uuid, name in it["gpu_names"].items()}
    step_watts = rank_informations[0]["arguments"]["pl_step"]
    return Job(power_limit_settings(ranges, step_watts), tuple(names_by_uuid.values()))


def _check_alike(first: Mapping[str, int], other: Mapping[str, int], rank: int) -> None:
    for argument, value in first.items():
        if other[argument] != value:
            raise UsageError(
                f"{argument} is {value} on rank 0 and {other[argument]} on rank {rank}; give every rank the same"
            )


def trials_to_json(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Trials in JSON's types."""
    return [encode(trial) for trial in trials]


def trials_from_json(trials: Sequence[Mapping[str, Any]]) -> dict[int, Trial]:
    """What `trials_to_json` wrote, by setting."""
    return {trial.setting: trial for trial in (decode(Trial, fields) for fields in trials)}
