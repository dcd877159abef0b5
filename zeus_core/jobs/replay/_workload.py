"""A recorded job: what training it costs at each batch size and power limit, and how many epochs it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.search import Search, Trial
from zeus_core.search.objectives import OptimumSelector, PowerLimitMeasurement, ZeusCost

SearchFactory = Callable[[Sequence[int], OptimumSelector], Search]

_SLICE_STEPS = 40  # of a trial: as many as the optimizer measures by default; the scatter of steps is not recorded


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
class SearchedEpoch:
    """The power limit that a search has chosen, and the epoch in which it searched.

    Attributes:
        limit_watts: The chosen limit.
        chosen: An epoch at that limit.
        searching: The epoch of the search: an equal share of it at each limit tried, the rest at the chosen one.
    """

    limit_watts: int
    chosen: EpochAtLimit
    searching: EpochAtLimit


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

    def best_epoch_cost(self, size: int) -> float:
        """Return the lowest cost of an epoch at a batch size."""
        return min(map(self.epoch_cost, self.sizes[size].limits.values()))

    def mean_epoch_cost(self, size: int) -> float:
        """Return the mean cost of an epoch at a batch size, over all limits."""
        costs = [self.epoch_cost(epoch) for epoch in self.sizes[size].limits.values()]
        return math.fsum(costs) / len(costs)

    @cached_property
    def least_cost(self) -> float:
        """Expected cost of a training at the best batch size and limit, repeated until it reaches the target."""
        return min(map(self._expected_cost, self.sizes))

    def known_epochs(self) -> dict[int, float]:
        """Return the mean epochs to the target by batch size; infinite where most trainings do not reach it."""
        means = {}
        for size, recorded in self.sizes.items():
            reached = [epochs for epochs in recorded.epochs if epochs is not None and epochs <= self.max_epochs]
            is_usual = 2 * len(reached) > len(recorded.epochs)
            means[size] = math.fsum(reached) / len(reached) if is_usual else math.inf
        return means

    def searched(self, size: int, make_search: SearchFactory) -> SearchedEpoch:
        """Search a power limit for a batch size."""
        limits = self.sizes[size].limits
        selector = ZeusCost(self.eta_knob, max_power_watts=self.max_power_watts)
        search = make_search(sorted(limits, reverse=True), selector)
        tried: dict[int, Trial] = {}
        while (setting := search.ask()) is not None and setting not in tried:
            measurement = Measurement.from_energies(limits[setting].seconds, {0: limits[setting].joules})
            tried[setting] = Trial(setting, _SLICE_STEPS, measurement)
            search.tell(tried[setting])
        chosen = search.choice
        if chosen is None:
            chosen = selector.select([PowerLimitMeasurement.from_trial(trial, 1) for trial in tried.values()])
        rest = len(limits) - len(tried)
        seconds = math.fsum(limits[watts].seconds for watts in tried) + rest * limits[chosen].seconds
        joules = math.fsum(limits[watts].joules for watts in tried) + rest * limits[chosen].joules
        return SearchedEpoch(chosen, limits[chosen], EpochAtLimit(seconds / len(limits), joules / len(limits)))

    def _expected_cost(self, size: int) -> float:
        epochs = self.sizes[size].epochs
        reached = [one for one in epochs if one is not None and one <= self.max_epochs]
        used = math.fsum(reached) + self.max_epochs * (len(epochs) - len(reached))
        return self.best_epoch_cost(size) * used / len(reached) if reached else math.inf
