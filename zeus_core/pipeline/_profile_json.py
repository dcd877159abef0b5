"""Profiles as JSON: everything a profile holds, the blocking power included."""

from __future__ import annotations

from typing import Any

from zeus_core.errors import UsageError
from zeus_core.pipeline._option import MeasuredOption
from zeus_core.pipeline._profile import InstructionProfile, PipelineProfile

__all__ = ["profile_from_json", "profile_to_json"]

_FORMAT = "zeus-core pipeline profile"
_VERSION = 1


def profile_to_json(profile: PipelineProfile) -> dict[str, Any]:
    """A JSON object; each option is [MHz or null, seconds, joules, standard error of each]."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "blocking_power_watts": list(profile.blocking_power_watts),
        "gpus": list(profile.gpus),
        "instructions": [
            {"stage": it.stage, "kind": it.kind, "options": [_option_to_json(option) for option in it.options]}
            for it in profile.instructions
        ],
    }


def profile_from_json(fields: Any) -> PipelineProfile:
    """Read what `profile_to_json` wrote.

    Raises:
        UsageError: It is not a profile; the message names the instruction.
    """
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT or fields.get("version") != _VERSION:
        raise UsageError(f'this is not a profile: it does not say "format": "{_FORMAT}", "version": {_VERSION}')
    try:
        instructions = [_instruction_from_json(position, it) for position, it in enumerate(fields["instructions"])]
        return PipelineProfile(instructions, list(fields["blocking_power_watts"]), list(fields["gpus"]))
    except (KeyError, TypeError) as error:
        raise UsageError(f"this is not a profile: {error!r}") from error


def _option_to_json(option: MeasuredOption) -> list[float | int | None]:
    spreads = (option.time_stderr_seconds, option.energy_stderr_joules)
    return [option.clock_mhz, float(option.time_seconds), float(option.energy_joules), *map(float, spreads)]


def _instruction_from_json(position: int, fields: Any) -> InstructionProfile:
    try:
        options = tuple(MeasuredOption(*option) for option in fields["options"])
        return InstructionProfile(fields["stage"], fields["kind"], options)
    except (KeyError, TypeError) as error:
        raise UsageError(f"instruction {position} of the profile cannot be read: {error!r}") from error
    except UsageError as error:
        raise UsageError(f"instruction {position} of the profile: {error}") from error
