"""Plans: the clock of every instruction of a pipeline, predicted time and energy, and JSON files of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import MAX_CLOCK_MHZ, CostedOption
from zeus_core.pipeline.planner.dependencies import ROUNDING
from zeus_core.pipeline.planner.execution import Execution, SwitchPrice
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem
from zeus_core.pipeline.planner.pipeline_profile import PipelineProfile
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule
from zeus_core.pipeline.planner.waiting_clocks import WaitingClocks, execute_waits, watts_after_work
from zeus_core.units import duration_text, energy_text, rows_html
from zeus_core.validate import (
    checked_number,
    checked_path,
    checked_whole_number,
)


@dataclass(frozen=True)
class Plan:
    """Clocks, and the predicted time and energy of an iteration.

    Attributes:
        name: The method that made it, such as "frontier".
        schedule: The instructions.
        clocks_mhz: SM clock of each instruction of each rank, in the order of `schedule.ranks`; None if the clock stays
            as it is. All GPUs of a stage use the same.
        time_seconds: Iteration time.
        energy_joules: Energy of all GPUs over it.
        switches: Number of clock switches in an iteration, on all ranks together (one GPU of each stage).
        switch_seconds: Assumed duration of each switch; `time_seconds` includes it.
        blocking_power_watts: Power of all GPUs together while they wait; that after their last instructions, if it
            depends on the clocks.
        profile_fingerprint: Fingerprint of the profile the plan was made from; see `PipelineProfile.fingerprint`.
        switch_joules: Assumed energy of each switch on each GPU above waiting; `energy_joules` includes it.
        bound_joules: No plan with the same limit and price of switches takes less energy; None if not known.
        waiting_clocks_mhz: For each rank the clock at which it waits before each instruction, and after the last; None
            for the clock of what follows. Empty if the profile does not have the power of waiting by the clock.
    """

    name: str
    schedule: Schedule
    clocks_mhz: tuple[tuple[int | None, ...], ...]
    time_seconds: float
    energy_joules: float
    switches: int
    switch_seconds: float
    blocking_power_watts: float
    profile_fingerprint: str
    switch_joules: float = 0.0
    bound_joules: float | None = None
    waiting_clocks_mhz: tuple[tuple[int | None, ...], ...] = ()

    @classmethod
    def from_options(
        cls,
        name: str,
        problem: PipelineProblem,
        chosen: Sequence[CostedOption],
        switch_seconds: float = 0.0,
        switch_joules: float = 0.0,
        bound_joules: float | None = None,
        waiting_clocks_mhz: WaitingClocks = (),
    ) -> Plan:
        """Return the plan that runs each instruction at a chosen option.

        Args:
            name: The method that made it.
            problem: The instructions.
            chosen: The option of each instruction, in the order of `problem.graph`. [instructions]
            switch_seconds: Duration of a clock switch.
            switch_joules: Energy of a clock switch of one GPU above waiting.
            bound_joules: See `Plan`.
            waiting_clocks_mhz: See `Plan`; if empty, each rank waits at the clock of what follows.

        Raises:
            UsageError: An argument is wrong, such as fewer options than instructions; the message names it.
        """
        if len(chosen) != len(problem.graph.instructions):
            raise UsageError(
                f"chosen has {len(chosen)} options; there are {len(problem.graph.instructions)} instructions"
            )
        wanted = "a finite number, at least 0"
        switch_seconds = checked_number("switch_seconds", switch_seconds, 0.0, 1e9, "seconds, from 0 to 1e9")
        switch_joules = checked_number("switch_joules", switch_joules, 0.0, math.inf, wanted)
        waiting_clocks_mhz = _checked_waits(problem, waiting_clocks_mhz)
        result = execute_waits(problem, chosen, SwitchPrice(switch_seconds, switch_joules), waiting_clocks_mhz)
        clocks = dict(zip(problem.graph.instructions, (option.clock_mhz for option in chosen), strict=True))
        clocks_mhz = tuple(tuple(clocks[instruction] for instruction in rank) for rank in problem.schedule.ranks)
        return cls(
            name=name,
            schedule=problem.schedule,
            clocks_mhz=clocks_mhz,
            time_seconds=result.time_seconds,
            energy_joules=result.energy_joules,
            switches=result.switches,
            switch_seconds=switch_seconds,
            blocking_power_watts=watts_after_work(problem, clocks_mhz, waiting_clocks_mhz),
            profile_fingerprint=problem.profile.fingerprint,
            switch_joules=switch_joules,
            bound_joules=bound_joules,
            waiting_clocks_mhz=waiting_clocks_mhz,
        )

    @property
    def average_power_watts(self) -> float:
        """Mean power of all GPUs together."""
        return self.energy_joules / self.time_seconds

    def energy_joules_until(self, time_seconds: float) -> float:
        """Return the energy of all GPUs from the beginning of an iteration to a time after it; they wait in between.

        Raises:
            UsageError: The time is before the end of the iteration.
        """
        if not time_seconds >= self.time_seconds * (1 - ROUNDING):
            raise UsageError(
                f"time_seconds is {time_seconds!r}, before the end of the iteration, {self.time_seconds!r}"
            )
        return self.energy_joules + self.blocking_power_watts * (time_seconds - self.time_seconds)

    def _repr_html_(self) -> str | None:
        rows = {"plan": self.name, "schedule": f"{self.schedule.name}, {len(self.schedule.ranks)} ranks"}
        rows |= {"iteration": f"{duration_text(self.time_seconds)}, {energy_text(self.energy_joules)}"}
        return rows_html(rows | {"changes of clocks": f"{self.switches} an iteration"})

    def execution(self, profile: PipelineProfile) -> Execution:
        """Predict when each instruction runs, in the order of `PipelineProblem(profile, schedule).graph`.

        Raises:
            UsageError: The plan was made from another profile.
        """
        if profile.fingerprint != self.profile_fingerprint:
            raise UsageError("the plan was made from another profile; make it again from this one")
        problem = PipelineProblem(profile, self.schedule)
        price = SwitchPrice(self.switch_seconds, self.switch_joules)
        return execute_waits(problem, self.options(problem), price, self.waiting_clocks_mhz)

    def options(self, problem: PipelineProblem) -> list[CostedOption]:
        """Return the option of each instruction, in the order of `problem.graph`.

        Raises:
            UsageError: The profile of the problem lacks a clock of the plan.
        """
        clocks = {
            instruction: clock
            for order, of_rank in zip(self.schedule.ranks, self.clocks_mhz, strict=True)
            for instruction, clock in zip(order, of_rank, strict=True)
        }
        return [
            problem.option_at(instruction.stage, instruction.kind, clocks[instruction])
            for instruction in problem.graph.instructions
        ]


def _checked_waits(problem: PipelineProblem, clocks_mhz: WaitingClocks) -> WaitingClocks:
    """Return clocks of waits that fit a problem.

    Raises:
        UsageError: They do not; the message names the argument.
    """
    name = "waiting_clocks_mhz"
    ranks = [
        tuple(_checked_clock_of_wait(f"{name}[{rank}][{wait}]", clock) for wait, clock in enumerate(of_rank))
        for rank, of_rank in enumerate(clocks_mhz)
    ]
    waits = [len(order) + 1 for order in problem.schedule.ranks]
    if ranks and [len(of_rank) for of_rank in ranks] != waits:
        raise UsageError(f"{name} has {[len(of_rank) for of_rank in ranks]} clocks for the {waits} waits of the ranks")
    return tuple(ranks)


def _checked_clock_of_wait(name: str, value: Any) -> int | None:
    return None if value is None else checked_whole_number(name, value, 1, "a clock in whole MHz", MAX_CLOCK_MHZ)


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
    waiting_clocks_mhz: tuple[tuple[int | None, ...], ...] = ()

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


_PLAN = Document("zeus-core pipeline plan", 2, _PlanFields, "the plan")
_SHARED = [field.name for field in fields(Plan) if field.name not in {"schedule", "clocks_mhz"}]


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan to a file, which is replaced as a whole.

    Raises:
        UsageError: An argument is wrong; the message names it.
        OSError: The file cannot be written.
    """
    file = Path(checked_path("path", path))
    ranks = tuple(
        tuple(_PlannedInstruction(*instruction, clock) for instruction, clock in zip(order, clocks, strict=True))
        for order, clocks in zip(plan.schedule.ranks, plan.clocks_mhz, strict=True)
    )
    shared = {name: getattr(plan, name) for name in _SHARED}
    _PLAN.write(file, _PlanFields(schedule=plan.schedule.name, ranks=ranks, **shared), indent=None)


def read_plan(path: str | Path) -> Plan:
    """Return the plan in a file.

    Raises:
        UsageError: The file cannot be read, or is not a plan; the message names it.
    """
    path = checked_path("path", path)
    try:
        found = _PLAN.read(Path(path))
        ranks = tuple(tuple(Instruction(*planned[:3]) for planned in order) for order in found.ranks)
        clocks_mhz = tuple(tuple(planned.clock_mhz for planned in order) for order in found.ranks)
        shared = {name: getattr(found, name) for name in _SHARED}
        return Plan(schedule=Schedule(found.schedule, ranks), clocks_mhz=clocks_mhz, **shared)
    except (OSError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from error
