"""Any other schedule, from lists of instructions: your own, DeepSpeed's, or torch's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule
from zeus_core.validate import shown

_DEEPSPEED = {
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "SendActivation": "send-activation",
    "RecvActivation": "receive-activation",
    "SendGrad": "send-gradient",
    "RecvGrad": "receive-gradient",
    "ReduceGrads": "all-reduce",
    "ReduceTiedGrads": None,
    "OptimizerStep": "optimizer-step",
    "LoadMicroBatch": None,
}
_TORCH = {
    "F": "forward",
    "B": "backward",
    "I": "backward-input",
    "W": "backward-weight",
    "SEND_F": "send-activation",
    "RECV_F": "receive-activation",
    "SEND_B": "send-gradient",
    "RECV_B": "receive-gradient",
    "UNSHARD": None,
    "RESHARD": None,
    "REDUCE_GRAD": None,
}
_TORCH_ACTION = re.compile(r"(\d+)([A-Z_]+?)(\d*)")


def from_instruction_lists(
    ranks: Iterable[Iterable[Instruction | tuple[str, int, int]]], name: str = "custom"
) -> Schedule:
    """Return a schedule from the instructions of each rank, each an `Instruction` or (kind, stage, microbatch).

    Raises:
        UsageError: See `Schedule`.
    """
    lists: list[tuple[Instruction, ...]] = []
    for rank, instructions in enumerate(ranks):
        try:
            lists.append(tuple(Instruction(*instruction) for instruction in instructions))
        except Exception as error:  # also that of an object whose own methods fail
            raise UsageError(
                f"rank {rank} has an instruction that is not (kind, stage, microbatch): {error}"
            ) from error
    return Schedule(name, tuple(lists))


def from_deepspeed(streams: Sequence[Iterable[Iterable[Any]]], has_fixed: bool = False) -> Schedule:
    """Return a schedule from DeepSpeed's instruction streams: `[TrainSchedule(microbatches, stages, s) for s in ...]`.

    DeepSpeed's instructions name buffers, which are reused, so microbatches are counted here.

    Args:
        streams: For each stage its steps, each a list of instructions; their classes are recognized by name.
        has_fixed: Whether to keep the reduction of gradients and the optimizer step; the profile then needs them.

    Raises:
        UsageError: An instruction is unknown; or see `Schedule`.
    """
    return Schedule("deepspeed", tuple(_deepspeed_rank(stage, steps, has_fixed) for stage, steps in enumerate(streams)))


def _deepspeed_rank(stage: int, steps: Iterable[Iterable[Any]], has_fixed: bool) -> tuple[Instruction, ...]:
    counts: dict[str, int] = {}
    order = []
    for step in steps:
        for command in step:
            name = type(command).__name__
            if name not in _DEEPSPEED:
                raise UsageError(f"stage {stage}: {name} is not known; known are {', '.join(_DEEPSPEED)}")
            kind = _DEEPSPEED[name]
            if kind is None or (kind in ("all-reduce", "optimizer-step") and not has_fixed):
                continue
            order.append(Instruction(kind, stage, counts.setdefault(kind, 0)))
            counts[kind] += 1
    return tuple(order)


def from_torch(orders: Mapping[int, Sequence[Any]], name: str = "torch") -> Schedule:
    """Return a schedule from the order of `torch.distributed.pipelining`: actions such as "0F0", or None for a wait.

    Args:
        orders: Actions by rank, as text or as objects whose text has that form: stage, action (F forward, B backward, I
            input gradient, W weight gradient, SEND_F, RECV_F, SEND_B, RECV_B), microbatch.
        name: The name of the schedule.

    Raises:
        UsageError: An action is not of that form, or a rank is missing; or see `Schedule`.
    """
    if set(orders) != set(range(len(orders))):
        raise UsageError(f"orders are of the ranks {shown(list(orders))}; give one for each rank from 0")
    return Schedule(name, tuple(_torch_rank(rank, orders[rank]) for rank in range(len(orders))))


def _torch_rank(rank: int, actions: Sequence[Any]) -> tuple[Instruction, ...]:
    order = []
    for position, action in enumerate(actions):
        text = "" if action is None else _text(action).strip()
        if not text:
            continue
        match = _TORCH_ACTION.fullmatch(text)
        if match is None or match[2] not in _TORCH:
            raise UsageError(f"rank {rank}, action {position}: {shown(text)} is not known; an action looks like 0F0")
        kind = _TORCH[match[2]]
        if kind is not None:
            order.append(Instruction(kind, int(match[1]), int(match[3] or 0)))
    return tuple(order)


def _text(action: object) -> str:
    try:
        return str(action)
    except Exception:  # it is no action, and prints itself as nothing
        return shown(action)
