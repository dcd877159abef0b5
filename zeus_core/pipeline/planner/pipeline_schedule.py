"""Instructions, the pieces of work of a pipeline iteration, and schedules: their order on each rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.validate import checked_whole_number, shown

COMPUTE_KINDS = ("forward", "backward", "backward-input", "backward-weight", "recompute")
"""Work whose clock is chosen: a profile has several options for each kind."""

FIXED_KINDS = ("communication", "optimizer-step", "all-reduce")
"""Work of one fixed duration: a profile has exactly one option for each kind."""

BLOCKING_KIND = "blocking"
"""No work: the power of a GPU that waits for a neighbour at each clock. A profile has one option or more, or none."""

PROFILED_KINDS = (*COMPUTE_KINDS, *FIXED_KINDS, BLOCKING_KIND)
"""The kinds that a profile may contain."""

TRANSFER_KINDS = ("send-activation", "receive-activation", "send-gradient", "receive-gradient")
"""The two ends of a communication in a schedule. They take no time of the rank; the communication may."""

SCHEDULED_KINDS = (*COMPUTE_KINDS, *(kind for kind in FIXED_KINDS if kind != "communication"), *TRANSFER_KINDS)
"""The kinds that a schedule may contain."""


class Instruction(NamedTuple):
    """One piece of work of an iteration.

    Attributes:
        kind: One of `COMPUTE_KINDS`, `optimizer-step`, `all-reduce`, or one of `TRANSFER_KINDS`.
        stage: Its stage.
        microbatch: Its microbatch; a running number for an optimizer step or an all-reduce.
    """

    kind: str
    stage: int
    microbatch: int = 0

    def __str__(self) -> str:
        return f"{self.kind} of stage {self.stage}, microbatch {self.microbatch}"


def check_kind(kind: object, known: tuple[str, ...], where: str) -> str:
    """Return a kind of instruction that is one of those known.

    Raises:
        UsageError: It is not; the message begins with `where`.
    """
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(f"{where}: {shown(kind)} is not a kind of instruction; use one of {', '.join(known)}")
    return kind


_MAX_FORWARDS = 1_000_000  # 64 ranks of 8 stages with 1024 microbatches, the largest published, have half as many

_PARTNER = {"receive-activation": ("send-activation", -1), "receive-gradient": ("send-gradient", +1)}


@dataclass(frozen=True)
class Schedule:
    """The order of the instructions of each rank in one iteration. An instruction waits only for what it needs.

    The needs follow from the kinds: a forward pass needs the forward pass of the stage before; a backward pass needs
    the backward pass of the stage after and its own forward pass (and recomputation); a weight gradient needs its input
    gradient. If the lists contain sends and receives, then every need across ranks must have one of each.

    Attributes:
        name: The name of the schedule, such as "1f1b".
        ranks: The instructions of each rank in their order.

    Raises:
        UsageError: An argument is of another type; an instruction is unknown, missing, duplicated or on the wrong rank;
            a receive has no send, or a send no receive; or the ranks wait for each other in a circle. The message names
            the instruction.
    """

    name: str
    ranks: tuple[tuple[Instruction, ...], ...]

    def __post_init__(self) -> None:
        """Check that the schedule can run."""
        object.__setattr__(self, "ranks", tuple(map(tuple, self.ranks)))
        _check_known(self.ranks)
        _check_complete(self)
        if self.has_transfers:
            _check_transfers(self)
        _ = self.running_order

    @cached_property
    def rank_of_stage(self) -> tuple[int, ...]:
        """The rank of each stage."""
        ranks: dict[int, int] = {}
        for rank, instruction in self._with_rank():
            if ranks.setdefault(instruction.stage, rank) != rank:
                raise UsageError(
                    f"{instruction} is on rank {rank}, but stage {instruction.stage} is on rank "
                    f"{ranks[instruction.stage]}; a stage belongs to one rank"
                )
        missing = set(range(len(ranks))) - ranks.keys()
        if missing:
            raise UsageError(f"the schedule has no instruction of stage {min(missing)}, but one of stage {max(ranks)}")
        return tuple(ranks[stage] for stage in range(len(ranks)))

    @property
    def stages(self) -> int:
        """The number of stages; above the number of ranks if a rank has several."""
        return len(self.rank_of_stage)

    @cached_property
    def microbatches(self) -> int:
        """The number of microbatches of an iteration."""
        return 1 + max(each.microbatch for each in self.instructions if each.kind == "forward")

    @cached_property
    def has_transfers(self) -> bool:
        """Whether sends and receives are instructions of their own."""
        return any(instruction.kind in TRANSFER_KINDS for instruction in self.instructions)

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions, rank by rank."""
        return tuple(instruction for _, instruction in self._with_rank())

    @cached_property
    def running_order(self) -> tuple[Instruction, ...]:
        """All instructions in an order in which they can run: each after everything it waits for."""
        return _running_order(self)

    def needs(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield the instructions that must end before one begins, besides the one before it on its rank."""
        present = self._present
        return (needed for needed in self._possible_needs(instruction) if needed in present)

    @cached_property
    def _present(self) -> frozenset[Instruction]:
        return frozenset(self.instructions)

    def _with_rank(self) -> Iterator[tuple[int, Instruction]]:
        for rank, instructions in enumerate(self.ranks):
            for instruction in instructions:
                yield rank, instruction

    def _possible_needs(self, instruction: Instruction) -> tuple[Instruction, ...]:
        kind, stage, microbatch = instruction
        if kind == "forward":
            return self._from_neighbour((Instruction("forward", stage - 1, microbatch),), instruction)
        if kind in ("backward", "backward-input"):
            after = tuple(Instruction(name, stage + 1, microbatch) for name in ("backward", "backward-input"))
            own = tuple(Instruction(name, stage, microbatch) for name in ("forward", "recompute"))
            return own + self._from_neighbour(after, instruction)
        if kind == "backward-weight":
            return (Instruction("backward-input", stage, microbatch),)
        if kind == "recompute":
            return (Instruction("forward", stage, microbatch),)
        if kind in _PARTNER:
            return (_sender(instruction),)
        if kind == "send-activation":
            return (Instruction("forward", stage, microbatch),)
        if kind == "send-gradient":
            return Instruction("backward", stage, microbatch), Instruction("backward-input", stage, microbatch)
        return ()

    def _from_neighbour(self, needed: tuple[Instruction, ...], by: Instruction) -> tuple[Instruction, ...]:
        """Return the needs across stages; the receive, if the schedule has transfers and the stages two ranks."""
        neighbour = needed[0].stage
        ranks = self.rank_of_stage
        if self.has_transfers and 0 <= neighbour < len(ranks) and ranks[neighbour] != ranks[by.stage]:
            return (Instruction("receive-activation" if by.kind == "forward" else "receive-gradient", *by[1:]),)
        return needed


def checked_counts(**counts: int) -> list[int]:
    """Return the numbers of ranks, stages and microbatches of a schedule.

    Raises:
        UsageError: One is below 1, or the schedule would be too large to plan.
    """
    checked = [checked_whole_number(name, count, 1) for name, count in counts.items()]
    if math.prod(checked) > _MAX_FORWARDS:
        given = ", ".join(f"{name} is {shown(count)}" for name, count in counts.items())
        raise UsageError(f"{given}; their product must be at most {_MAX_FORWARDS}, as larger schedules take hours")
    return checked


def _sender(receive: Instruction) -> Instruction:
    kind, offset = _PARTNER[receive.kind]
    return Instruction(kind, receive.stage + offset, receive.microbatch)


def _check_known(ranks: Sequence[Sequence[Instruction]]) -> None:
    if not ranks or not any(ranks):
        raise UsageError("the schedule is empty; give the instructions of each rank")
    seen: set[Instruction] = set()
    for rank, instructions in enumerate(ranks):
        if not instructions:
            raise UsageError(f"rank {rank} has no instructions; leave it out, or give it some")
        for position, instruction in enumerate(instructions):
            where = f"rank {rank}, instruction {position}"
            check_kind(instruction.kind, SCHEDULED_KINDS, where)
            for name in ("stage", "microbatch"):
                number = getattr(instruction, name)
                if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                    raise UsageError(f"{where} has {name} {shown(number)}; it counts from 0")
            if instruction in seen:
                raise UsageError(f"{where}: {instruction} is in the schedule twice")
            seen.add(instruction)


def _check_complete(schedule: Schedule) -> None:
    present = schedule._present
    if not any(instruction.kind == "forward" for instruction in present):
        raise UsageError("the schedule has no forward pass")
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            has = {kind: Instruction(kind, stage, microbatch) in present for kind in COMPUTE_KINDS}
            where = f"of stage {stage}, microbatch {microbatch}"
            if not has["forward"]:
                raise UsageError(f"the schedule has no forward {where}")
            if has["backward"] and (has["backward-input"] or has["backward-weight"]):
                raise UsageError(f"the schedule has both a whole backward {where} and a part of it")
            if not has["backward"] and not (has["backward-input"] and has["backward-weight"]):
                missing = "backward-weight" if has["backward-input"] else "backward"
                raise UsageError(f"the schedule has no {missing} {where}")
    for instruction in present:
        if instruction.kind in COMPUTE_KINDS and instruction.microbatch >= schedule.microbatches:
            raise UsageError(f"the schedule has a {instruction}, but no forward of that microbatch")


def _check_transfers(schedule: Schedule) -> None:
    present = schedule._present
    for instruction in schedule.instructions:
        if instruction.kind in _PARTNER and _sender(instruction) not in present:
            raise UsageError(f"{instruction} has no send: the schedule needs a {_sender(instruction)}")
        if instruction.kind in ("send-activation", "send-gradient"):
            kind, offset = (
                ("receive-activation", 1) if instruction.kind == "send-activation" else ("receive-gradient", -1)
            )
            receive = Instruction(kind, instruction.stage + offset, instruction.microbatch)
            if receive not in present:
                raise UsageError(f"{instruction} has no receive: the schedule needs a {receive}")
    for instruction in schedule.instructions:
        for needed in schedule._possible_needs(instruction):
            if needed.kind in _PARTNER and needed not in present:
                raise UsageError(f"{instruction} has no receive: the schedule needs a {needed}")


def _running_order(schedule: Schedule) -> tuple[Instruction, ...]:
    """Let each rank run as far as it can; resume it when another rank has run what it waits for."""
    done: dict[Instruction, None] = {}
    position = [0] * len(schedule.ranks)
    waiting: dict[Instruction, list[int]] = {}
    runnable = list(range(len(schedule.ranks)))
    while runnable:
        rank = runnable.pop()
        for instruction in schedule.ranks[rank][position[rank] :]:
            missing = next((needed for needed in schedule.needs(instruction) if needed not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            done[instruction] = None
            position[rank] += 1
            runnable.extend(waiting.pop(instruction, ()))
    for missing, ranks in waiting.items():
        stuck = schedule.ranks[ranks[0]][position[ranks[0]]]
        raise UsageError(
            f"the schedule cannot run: on rank {ranks[0]}, {stuck} waits for {missing}, which comes after it in a "
            "cycle; change the order of the instructions"
        )
    return tuple(done)
