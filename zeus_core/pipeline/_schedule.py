"""A pipeline schedule: what each rank runs, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.pipeline._kinds import COMPUTE_KINDS, FIXED_KINDS, TRANSFER_KINDS, check_kind

__all__ = ["Instruction", "Schedule"]

_SCHEDULED_KINDS = (*COMPUTE_KINDS, *(kind for kind in FIXED_KINDS if kind != "communication"), *TRANSFER_KINDS)
_PARTNER = {"receive-activation": ("send-activation", -1), "receive-gradient": ("send-gradient", +1)}


class Instruction(NamedTuple):
    """One piece of work of an iteration.

    Attributes:
        kind: One of `COMPUTE_KINDS`, `optimizer-step`, `all-reduce`, or one of `TRANSFER_KINDS`.
        stage: The stage it belongs to.
        microbatch: The microbatch it works on; of an optimizer step or an all-reduce, a running number.
    """

    kind: str
    stage: int
    microbatch: int = 0

    def __str__(self) -> str:
        return f"{self.kind} of stage {self.stage}, microbatch {self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """The order of the instructions of each rank in one iteration. Ranks wait only for what they need.

    What needs what follows from the instructions: a forward pass needs that of the stage before, a backward pass that
    of the stage after and its own forward pass (and recomputation), a weight gradient its input gradient. If the lists
    contain sends and receives, then every need across ranks must have one of each.

    Attributes:
        name: What it is called.
        ranks: The instructions of each rank in their order.

    Raises:
        UsageError: An instruction is unknown, missing, there twice or on the wrong rank, a receive has no send or a
            send no receive, or the ranks wait for each other in a circle; the message names the instruction.
    """

    name: str
    ranks: tuple[tuple[Instruction, ...], ...]

    def __post_init__(self) -> None:
        _check_known(self.ranks)
        _check_complete(self)
        if self.has_transfers:
            _check_transfers(self)
        _ = self.running_order

    @cached_property
    def rank_of_stage(self) -> tuple[int, ...]:
        """The rank each stage is on."""
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
        """How many stages there are; more than ranks where a rank has several."""
        return len(self.rank_of_stage)

    @cached_property
    def microbatches(self) -> int:
        """How many microbatches an iteration has."""
        return 1 + max(it.microbatch for _, it in self._with_rank() if it.kind == "forward")

    @cached_property
    def has_transfers(self) -> bool:
        """Whether sends and receives are instructions of their own."""
        return any(it.kind in TRANSFER_KINDS for _, it in self._with_rank())

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions, rank by rank."""
        return tuple(it for _, it in self._with_rank())

    @cached_property
    def running_order(self) -> tuple[Instruction, ...]:
        """All instructions in an order in which they can run: each after everything it waits for."""
        return _running_order(self)

    def needs(self, instruction: Instruction) -> Iterator[Instruction]:
        """What must be finished before an instruction, beside the one before it on its rank."""
        present = self._present
        return (it for it in self._possible_needs(instruction) if it in present)

    @cached_property
    def _present(self) -> frozenset[Instruction]:
        return frozenset(self.instructions)

    def _with_rank(self) -> Iterator[tuple[int, Instruction]]:
        for rank, instructions in enumerate(self.ranks):
            for instruction in instructions:
                yield rank, instruction

    def _possible_needs(self, it: Instruction) -> tuple[Instruction, ...]:
        kind, stage, microbatch = it
        if kind == "forward":
            return self._from_neighbour((Instruction("forward", stage - 1, microbatch),), it)
        if kind in ("backward", "backward-input"):
            after = tuple(Instruction(name, stage + 1, microbatch) for name in ("backward", "backward-input"))
            own = tuple(Instruction(name, stage, microbatch) for name in ("forward", "recompute"))
            return own + self._from_neighbour(after, it)
        if kind == "backward-weight":
            return (Instruction("backward-input", stage, microbatch),)
        if kind == "recompute":
            return (Instruction("forward", stage, microbatch),)
        if kind in _PARTNER:
            return (_sender(it),)
        if kind == "send-activation":
            return (Instruction("forward", stage, microbatch),)
        if kind == "send-gradient":
            return Instruction("backward", stage, microbatch), Instruction("backward-input", stage, microbatch)
        return ()

    def _from_neighbour(self, needed: tuple[Instruction, ...], it: Instruction) -> tuple[Instruction, ...]:
        """The needs across stages; where the schedule has transfers and the stages are on two ranks, the receive."""
        neighbour = needed[0].stage
        ranks = self.rank_of_stage
        if self.has_transfers and 0 <= neighbour < len(ranks) and ranks[neighbour] != ranks[it.stage]:
            return (Instruction("receive-activation" if it.kind == "forward" else "receive-gradient", *it[1:]),)
        return needed


def _sender(receive: Instruction) -> Instruction:
    kind, offset = _PARTNER[receive.kind]
    return Instruction(kind, receive.stage + offset, receive.microbatch)


def _check_known(ranks: Sequence[Iterable[Instruction]]) -> None:
    if not ranks or not any(ranks):
        raise UsageError("the schedule is empty; give the instructions of each rank")
    seen: set[Instruction] = set()
    for rank, instructions in enumerate(ranks):
        for position, it in enumerate(instructions):
            check_kind(it.kind, _SCHEDULED_KINDS, f"rank {rank}, instruction {position}")
            for name in ("stage", "microbatch"):
                number = getattr(it, name)
                if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                    raise UsageError(f"rank {rank}, instruction {position} has {name} {number!r}; it counts from 0")
            if it in seen:
                raise UsageError(f"rank {rank}, instruction {position}: {it} is in the schedule twice")
            seen.add(it)


def _check_complete(schedule: Schedule) -> None:
    present = schedule._present
    if not any(it.kind == "forward" for it in present):
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
    for it in present:
        if it.kind in COMPUTE_KINDS and it.microbatch >= schedule.microbatches:
            raise UsageError(f"the schedule has a {it}, but no forward of that microbatch")


def _check_transfers(schedule: Schedule) -> None:
    present = schedule._present
    for it in schedule.instructions:
        if it.kind in _PARTNER and _sender(it) not in present:
            raise UsageError(f"{it} has no send: the schedule needs a {_sender(it)}")
        if it.kind in ("send-activation", "send-gradient"):
            kind, offset = ("receive-activation", 1) if it.kind == "send-activation" else ("receive-gradient", -1)
            receive = Instruction(kind, it.stage + offset, it.microbatch)
            if receive not in present:
                raise UsageError(f"{it} has no receive: the schedule needs a {receive}")
    for it in schedule.instructions:
        for needed in schedule._possible_needs(it):
            if needed.kind in _PARTNER and needed not in present:
                raise UsageError(f"{it} has no receive: the schedule needs a {needed}")


def _running_order(schedule: Schedule) -> tuple[Instruction, ...]:
    """Each rank runs as far as it can, until one of the others has what it waits for."""
    done: dict[Instruction, None] = {}
    position = [0] * len(schedule.ranks)
    waiting: dict[Instruction, list[int]] = {}
    runnable = list(range(len(schedule.ranks)))
    while runnable:
        rank = runnable.pop()
        for it in schedule.ranks[rank][position[rank] :]:
            missing = next((needed for needed in schedule.needs(it) if needed not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            done[it] = None
            position[rank] += 1
            runnable.extend(waiting.pop(it, ()))
    for missing, ranks in waiting.items():
        stuck = schedule.ranks[ranks[0]][position[ranks[0]]]
        raise UsageError(
            f"the schedule cannot run: on rank {ranks[0]}, {stuck} waits for {missing}, which comes after it in a "
            "cycle; change the order of the instructions"
        )
    return tuple(done)
