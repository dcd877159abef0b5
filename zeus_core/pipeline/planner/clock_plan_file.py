"""Plans as JSON files: data only, versioned, and checked in full when read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from zeus_core._codec import decode, encode
from zeus_core._documents import JsonFormat
from zeus_core._validate import checked_instance, checked_number, checked_path, checked_whole_number
from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import MAX_CLOCK_MHZ
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pipeline.planner.instruction import Instruction
from zeus_core.pipeline.planner.pipeline_schedule import Schedule

__all__ = ["read_plan", "write_plan"]

_FORMAT = JsonFormat("zeus-core pipeline plan", 2)


class _PlannedInstruction(NamedTuple):
    kind: str
    stage: int
    microbatch: int
    clock_mhz: int | None


@dataclass(frozen=True)
class _PlanFields:
    """The fields of a plan file: those of `Plan`, with each clock beside its instruction, for people to read."""

    name: str
    profile_fingerprint: str
    time_seconds: float
    energy_joules: float
    switch_seconds: float
    switch_joules: float
    bound_joules: float | None
    blocking_power_watts: float
    switches: int
    schedule: str
    ranks: tuple[tuple[_PlannedInstruction, ...], ...]
    waiting_clocks_mhz: tuple[tuple[int | None, ...], ...]

    def __post_init__(self) -> None:
        for name in ("time_seconds", "energy_joules", "switch_seconds", "switch_joules", "blocking_power_watts"):
            checked_number(name, getattr(self, name), 0.0, math.inf, "a finite number, at least 0")
        checked_whole_number("switches", self.switches, 0)
        for rank, order in enumerate(self.ranks):
            for planned in order:
                if planned.clock_mhz is not None and not 0 < planned.clock_mhz < MAX_CLOCK_MHZ:
                    raise UsageError(f"rank {rank} has {tuple(planned)}, which must end with a clock in whole MHz")
        waits = [len(of_rank) for of_rank in self.waiting_clocks_mhz]
        if waits and waits != [len(order) + 1 for order in self.ranks]:
            raise UsageError(f"waiting_clocks_mhz has {waits} clocks; each rank has a wait more than instructions")
        for clock in (clock for of_rank in self.waiting_clocks_mhz for clock in of_rank):
            if clock is not None and not 0 < clock < MAX_CLOCK_MHZ:
                raise UsageError(f"waiting_clocks_mhz has {clock}, which must be a clock in whole MHz")


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan to a file, which is replaced as a whole.

    Raises:
        UsageError: An argument is wrong; the message names it.
        OSError: The file cannot be written.
    """
    checked_instance("plan", plan, Plan, "make_plan(frontier, slowdown_factor=1.1)")
    file = Path(checked_path("path", path))
    ranks = tuple(
        tuple(_PlannedInstruction(*instruction, clock) for instruction, clock in zip(order, clocks, strict=True))
        for order, clocks in zip(plan.schedule.ranks, plan.clocks_mhz, strict=True)
    )
    fields = _PlanFields(
        name=plan.name,
        profile_fingerprint=plan.profile_fingerprint,
        time_seconds=plan.time_seconds,
        energy_joules=plan.energy_joules,
        switch_seconds=plan.switch_seconds,
        switch_joules=plan.switch_joules,
        bound_joules=plan.bound_joules,
        blocking_power_watts=plan.blocking_power_watts,
        switches=plan.switches,
        schedule=plan.schedule.name,
        ranks=ranks,
        waiting_clocks_mhz=plan.waiting_clocks_mhz,
    )
    document = encode(fields)
    if not plan.waiting_clocks_mhz:  # as in files that were written before there were any
        del document["waiting_clocks_mhz"]
    _FORMAT.write(file, document, indent=None)


def read_plan(path: str | Path) -> Plan:
    """Return the plan in a file.

    Raises:
        UsageError: The file cannot be read, or is not a plan; the message names it.
    """
    path = checked_path("path", path)
    try:
        fields = decode(_PlanFields, {"waiting_clocks_mhz": [], **_FORMAT.read(Path(path))}, "the plan")
        return Plan(
            name=fields.name,
            schedule=Schedule(
                fields.schedule, tuple(tuple(Instruction(*planned[:3]) for planned in order) for order in fields.ranks)
            ),
            clocks_mhz=tuple(tuple(planned.clock_mhz for planned in order) for order in fields.ranks),
            time_seconds=fields.time_seconds,
            energy_joules=fields.energy_joules,
            switches=fields.switches,
            switch_seconds=fields.switch_seconds,
            switch_joules=fields.switch_joules,
            bound_joules=fields.bound_joules,
            blocking_power_watts=fields.blocking_power_watts,
            profile_fingerprint=fields.profile_fingerprint,
            waiting_clocks_mhz=fields.waiting_clocks_mhz,
        )
    except (OSError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from error
