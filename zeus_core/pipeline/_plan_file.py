"""Plans as JSON files: data only, versioned, and checked in full when read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.pipeline._plan import Plan
from zeus_core.pipeline._schedule import Instruction, Schedule

__all__ = ["plan_from_json", "plan_to_json", "read_plan", "write_plan"]

_FORMAT = "zeus-core pipeline plan"
_VERSION = 1
_NUMBERS = ("time_seconds", "energy_joules", "switch_seconds", "blocking_power_watts")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A JSON object: each rank as a list of [kind, stage, microbatch, MHz or null]."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "name": plan.name,
        "profile_fingerprint": plan.profile_fingerprint,
        **{name: getattr(plan, name) for name in _NUMBERS},
        "switches": plan.switches,
        "schedule": plan.schedule.name,
        "ranks": [
            [[*it, clock] for it, clock in zip(order, clocks, strict=True)]
            for order, clocks in zip(plan.schedule.ranks, plan.clocks_mhz, strict=True)
        ],
    }


def plan_from_json(fields: Any) -> Plan:
    """Read what `plan_to_json` wrote.

    Raises:
        UsageError: It is not a plan, of another version, or one of its values cannot be.
    """
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        raise UsageError(f'this is not a plan: it does not say "format": "{_FORMAT}"')
    if fields.get("version") != _VERSION:
        raise UsageError(f"the plan is of version {fields.get('version')!r}; this program reads version {_VERSION}")
    try:
        ranks = [[_instruction(rank, it) for it in order] for rank, order in enumerate(fields["ranks"])]
        return Plan(
            name=_text(fields, "name"),
            schedule=Schedule(_text(fields, "schedule"), tuple(tuple(it for it, _ in order) for order in ranks)),
            clocks_mhz=tuple(tuple(clock for _, clock in order) for order in ranks),
            switches=_count(fields["switches"]),
            profile_fingerprint=_text(fields, "profile_fingerprint"),
            **{name: _number(name, fields[name]) for name in _NUMBERS},
        )
    except (KeyError, TypeError, OverflowError) as error:  # whole numbers in JSON have no limit
        raise UsageError(f"the plan cannot be read: {error!r}") from error


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan to a file."""
    Path(path).write_text(json.dumps(plan_to_json(plan)) + "\n", encoding="utf-8")


def read_plan(path: str | Path) -> Plan:
    """Read a plan from a file.

    Raises:
        UsageError: The file cannot be read, or is not a plan; the message names it.
    """
    try:
        return plan_from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # a UsageError is a ValueError too
        raise UsageError(f"{path}: {error}") from error


def _instruction(rank: int, fields: Any) -> tuple[Instruction, int | None]:
    if not isinstance(fields, list) or len(fields) != 4:
        raise UsageError(f"rank {rank} has {fields!r}; an instruction is [kind, stage, microbatch, MHz or null]")
    kind, stage, microbatch, clock = fields
    if clock is not None and (isinstance(clock, bool) or not isinstance(clock, int) or not 0 < clock < 10_000):
        raise UsageError(f"rank {rank}, {kind} of stage {stage}: {clock!r} is not a clock; give whole MHz or null")
    return Instruction(kind, stage, microbatch), clock


def _text(fields: dict[str, Any], name: str) -> str:
    if not isinstance(fields[name], str):
        raise UsageError(f"{name} of the plan is {fields[name]!r}, which is not text")
    return str(fields[name])


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"{name} of the plan is {value!r}; it must be a finite number, at least 0")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"switches of the plan is {value!r}; it must be a whole number, at least 0")
    return value
