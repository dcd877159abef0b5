"""The facts of a trace that its events do not hold: ranks, clocks, devices, energy by phase. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy


@dataclass(frozen=True)
class DeviceFacts:
    """A device of a rank.

    Attributes:
        index: The index by which the framework knows it.
        uuid: Its UUID.
        name: The product name.
    """

    index: int
    uuid: str
    name: str


@dataclass(frozen=True)
class PhaseEnergy:
    """Time and energy of one activity of a rank, over the whole training.

    Attributes:
        seconds: Its time.
        measured: Its energy, without that of `lost_seconds`.
        lost_seconds: Time whose energy is not known.
    """

    seconds: float
    measured: DeviceEnergy
    lost_seconds: float = 0.0


class ClockPoint(NamedTuple):
    """The clock of a rank against that of rank 0, at one moment.

    Attributes:
        at: The moment, in seconds of the trace of this rank.
        ahead_seconds: How much its clock shows more than that of rank 0.
        uncertainty_seconds: How far that can be off.
    """

    at: float
    ahead_seconds: float
    uncertainty_seconds: float


@dataclass(frozen=True)
class RankFacts:
    """The facts of one rank.

    Attributes:
        rank: Its number.
        world_size: The number of ranks of the job.
        host: The name of its machine.
        base_nanoseconds: The beginning of its trace: nanoseconds since 1970 by the clock of its machine.
        seconds: How long the trace is.
        clock: Comparisons with the clock of rank 0; empty where there were none.
        devices: The GPUs that it counts.
        phases: Time and energy by activity.
        total: The same of all of them, measured from end to end; None if it is not known.
        steps: The steps it has trained.
        dropped: How many of each kind of event were dropped, the oldest first, to keep the file small.
        machine: The clock that its moments are of; ranks with the same one share it. Empty if that is not known.
        machine_nanoseconds: The beginning of its trace by that clock.
        run: The name of the run.
    """

    rank: int
    world_size: int
    host: str
    base_nanoseconds: int
    seconds: float = 0.0
    clock: tuple[ClockPoint, ...] = ()
    devices: tuple[DeviceFacts, ...] = ()
    phases: Mapping[str, PhaseEnergy] = field(default_factory=dict)
    total: PhaseEnergy | None = None
    steps: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    machine: str = ""
    machine_nanoseconds: int = 0
    run: str = ""

    def __post_init__(self) -> None:
        """Check that the numbers can be those of a job.

        Raises:
            UsageError: The rank is none of the world, or an energy is lost without its time.
        """
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank is {self.rank}, of a world of {self.world_size}")
        if any(phase.measured.energy_joules is None for phase in [*self.phases.values(), *filter(None, [self.total])]):
            raise UsageError("an energy is null; time without a known energy belongs to lost_seconds")


def phases_of(ranks: Sequence[RankFacts]) -> Mapping[str, PhaseEnergy]:
    """Return the activities of all ranks together: their energies add up, and the time is that of the slowest rank."""
    names = {name: None for rank in ranks for name in rank.phases}
    return {name: _added([rank.phases[name] for rank in ranks if name in rank.phases]) for name in names}


def total_of(ranks: Sequence[RankFacts]) -> PhaseEnergy | None:
    """Return time and energy of all ranks together; None if they are not known of some."""
    totals = [rank.total for rank in ranks if rank.total is not None]
    return _added(totals) if ranks and len(totals) == len(ranks) else None


def _added(parts: Sequence[PhaseEnergy]) -> PhaseEnergy:
    return PhaseEnergy(
        max(part.seconds for part in parts),
        sum((part.measured for part in parts), DeviceEnergy()),
        sum(part.lost_seconds for part in parts),
    )
