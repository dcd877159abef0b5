"""The facts of a trace that its events do not hold: ranks, clocks, devices, updates, energy by phase. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy

_MICRO, _MILLI = 1e6, 1e3


class Update(NamedTuple):
    """An update of an energy counter: a moment at which the energy is known.

    Attributes:
        at: The moment, in seconds of the trace, as far as it is known.
        half_width_seconds: How far it can be off.
        energy_joules: The energy by then.
    """

    at: float
    half_width_seconds: float
    energy_joules: float


@dataclass(frozen=True)
class Updates:
    """Updates in columns, as differences from one to the next, which are short in a file.

    Attributes:
        at_us: Microseconds since the update before; for the first one, since the beginning of the trace.
        half_width_us: How far each moment can be off, in microseconds.
        energy_mj: Millijoules more than at the update before.

    Raises:
        UsageError: The columns differ in length.
    """

    at_us: tuple[int, ...] = ()
    half_width_us: tuple[int, ...] = ()
    energy_mj: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the columns."""
        if not len(self.at_us) == len(self.half_width_us) == len(self.energy_mj):
            raise UsageError("the columns of updates differ in length")

    @classmethod
    def from_updates(cls, updates: Sequence[Update]) -> Updates:
        """Pack updates, which follow each other in time."""
        return cls(
            _differences([round(update.at * _MICRO) for update in updates]),
            tuple(math.ceil(update.half_width_seconds * _MICRO) for update in updates),
            _differences([round(update.energy_joules * _MILLI) for update in updates]),
        )

    def unpacked(self) -> Iterator[Update]:
        """Return the updates, in order."""
        moments, energies = itertools.accumulate(self.at_us), itertools.accumulate(self.energy_mj)
        for at, half_width, energy in zip(moments, self.half_width_us, energies, strict=True):
            yield Update(at / _MICRO, half_width / _MICRO, energy / _MILLI)


@dataclass(frozen=True)
class DeviceFacts:
    """A device of a rank.

    Attributes:
        index: The index by which the framework knows it.
        uuid: Its UUID.
        name: The product name.
        peak_watts: The most it can draw.
        is_counted: Whether it has an energy counter; else its energy is added up from powers.
        updates: The updates that are kept, or moments at which powers were read.
    """

    index: int
    uuid: str
    name: str
    peak_watts: float
    is_counted: bool
    updates: Updates = field(default_factory=Updates)


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
        unix_points: Moments in seconds of the trace, with the seconds that the machine's clock showed since then.
        clock: Comparisons with the clock of rank 0; empty where there were none.
        devices: The GPUs that it counts.
        phases: Time and energy by activity.
        total: The same of all of them, measured from end to end; None if it is not known.
        steps: The steps it has trained.
        dropped: How many of each kind of event were dropped, the oldest first, to keep the file small.
        machine: The clock that its moments are of; ranks with the same one share it. Empty if that is not known.
        machine_nanoseconds: The beginning of its trace by that clock.
        run: The name of the run. Empty in files of earlier versions.
    """

    rank: int
    world_size: int
    host: str
    base_nanoseconds: int
    unix_points: tuple[tuple[float, float], ...] = ()
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


def _differences(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(after - before for before, after in itertools.pairwise([0, *values]))


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
