"""A recorded job: what training it costs at each batch size and power limit, and how many epochs it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from zeus_core.errors import UsageError


@dataclass(frozen=True)
class EpochAtLimit:
    """An epoch at one power limit.

    Attributes:
        seconds: Its duration.
        joules: Its energy.
    """

    seconds: float
    joules: float


@dataclass(frozen=True)
class RecordedSize:
    """The records of one batch size.

    Attributes:
        epochs: Epochs to the target of each recorded training; None where the target was never reached.
        limits: An epoch at each power limit, by watts.
    """

    epochs: tuple[int | None, ...]
    limits: Mapping[int, EpochAtLimit]


@dataclass(frozen=True)
class Workload:
    """A recorded job on one GPU model.

    Attributes:
        name: The name of the job.
        gpu_model: Where it was recorded.
        sizes: The records, by batch size.
        default: The batch size of the user.
        max_epochs: Epochs after which a training ends short of its target.
        max_power_watts: The highest power limit of the GPU model.
        eta_knob: Weight of energy in the cost, from 0 (time alone) to 1.

    Raises:
        UsageError: The default was not recorded, or no recorded training reaches the target.
    """

    name: str
    gpu_model: str
    sizes: Mapping[int, RecordedSize]
    default: int
    max_epochs: int
    max_power_watts: float
    eta_knob: float = 0.5

    def __post_init__(self) -> None:
        """Check that there is something to replay."""
        if self.default not in self.sizes:
            known = ", ".join(map(str, sorted(self.sizes)))
            raise UsageError(f"default is {self.default}; {self.name} on {self.gpu_model} was recorded at {known}")
        if math.isinf(self.least_cost):
            raise UsageError(
                f"{self.name} on {self.gpu_model}: no recorded training reaches the target in {self.max_epochs} epochs"
            )

    def cost(self, seconds: float, joules: float) -> float:
        """Return the cost of some time and energy, in joules."""
        return self.eta_knob * joules + (1.0 - self.eta_knob) * self.max_power_watts * seconds

    def epoch_cost(self, epoch: EpochAtLimit) -> float:
        """Return the cost of an epoch."""
        return self.cost(epoch.seconds, epoch.joules)

    def best_limit(self, size: int) -> int:
        """Return the power limit of the lowest cost of an epoch at a batch size; the highest of several."""
        limits = self.sizes[size].limits
        return min(sorted(limits, reverse=True), key=lambda watts: self.epoch_cost(limits[watts]))

    def best_epoch_cost(self, size: int) -> float:
        """Return the lowest cost of an epoch at a batch size."""
        return self.epoch_cost(self.sizes[size].limits[self.best_limit(size)])

    def searching_epoch(self, size: int) -> EpochAtLimit:
        """Return the epoch in which the limit of a batch size is searched: an equal share of it at each limit."""
        epochs = self.sizes[size].limits.values()
        seconds, joules = math.fsum(each.seconds for each in epochs), math.fsum(each.joules for each in epochs)
        return EpochAtLimit(seconds / len(epochs), joules / len(epochs))

    @cached_property
    def least_cost(self) -> float:
        """Expected cost of a training at the best batch size and limit, repeated until it reaches the target."""
        return min(map(self._expected_cost, self.sizes))

    def known_epochs(self) -> dict[int, float]:
        """Return the mean epochs to the target by batch size; infinite where most runs do not reach it."""
        means = {}
        for size, recorded in self.sizes.items():
            reached = [epochs for epochs in recorded.epochs if epochs is not None and epochs <= self.max_epochs]
            is_usual = 2 * len(reached) > len(recorded.epochs)
            means[size] = math.fsum(reached) / len(reached) if is_usual else math.inf
        return means

    def _expected_cost(self, size: int) -> float:
        epochs = self.sizes[size].epochs
        reached = [count for count in epochs if count is not None and count <= self.max_epochs]
        used = math.fsum(reached) + self.max_epochs * (len(epochs) - len(reached))
        return self.best_epoch_cost(size) * used / len(reached) if reached else math.inf
