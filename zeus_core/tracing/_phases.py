"""Time and energy by activity, of the ranks of a trace. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zeus_core.measurement import DeviceEnergy
from zeus_core.tracing._facts import PhaseEnergy, RankFacts

__all__ = ["phases_of", "total_of"]


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
