"""The energy of a whole job."""

from __future__ import annotations

from zeus_core.measurement import Measurement
from zeus_core.ports import World
from zeus_core.ports.world import checked_world


def measure_job(measurement: Measurement, world: World) -> Measurement:
    """Add up what all ranks measured: a collective call, which every rank must make.

    A device that several ranks measured counts once; see `Measurement.from_ranks`.

    Args:
        measurement: This rank's window; the same window on each.
        world: The ranks.

    Returns:
        The same value on every rank.

    Raises:
        UsageError: An argument is wrong; the message names it.
        WorldError: A rank did not answer in time.
    """
    world = checked_world(world)
    return Measurement.from_ranks(map(Measurement.from_json, world.gather(measurement.to_json())))
