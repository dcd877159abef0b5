"""Measured profiles: what each instruction of each pipeline stage takes at each clock."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.pipeline._kinds import COMPUTE_KINDS, FIXED_KINDS, check_kind
from zeus_core.pipeline._option import MeasuredOption

__all__ = ["InstructionProfile", "PipelineProfile"]


@dataclass(frozen=True)
class InstructionProfile:
    """The options of one kind of instruction on one stage.

    A kind whose clock is chosen (`COMPUTE_KINDS`) needs at least two options: one alone is a sweep that was not
    finished. A fixed kind (`FIXED_KINDS`) has exactly one.

    Attributes:
        stage: Pipeline stage, from 0.
        kind: One of `COMPUTE_KINDS` and `FIXED_KINDS`.
        options: One per clock, the highest clock first (sorted here if need be).

    Raises:
        UsageError: The options do not fit the kind, or a clock occurs twice.
    """

    stage: int
    kind: str
    options: tuple[MeasuredOption, ...]

    def __post_init__(self) -> None:
        if isinstance(self.stage, bool) or not isinstance(self.stage, int) or self.stage < 0:
            raise UsageError(f"stage is {self.stage!r}; stages are whole numbers from 0")
        check_kind(self.kind, COMPUTE_KINDS + FIXED_KINDS, f"stage {self.stage}")
        options = tuple(sorted(self.options, key=lambda option: -(option.clock_mhz or 0)))
        object.__setattr__(self, "options", options)
        self._check_number()
        clocks = [option.clock_mhz for option in options]
        for clock, following in pairwise(clocks):
            if clock == following:
                raise UsageError(f"{self}: {clock} MHz occurs twice; keep one row for each clock")

    def _check_number(self) -> None:
        if self.kind in FIXED_KINDS:
            if len(self.options) != 1:
                raise UsageError(f"{self}: {len(self.options)} options; a fixed kind has exactly one")
            return
        if len(self.options) < 2:
            raise UsageError(f"{self}: {len(self.options)} option(s); measure it at two clocks at least")
        if any(option.clock_mhz is None for option in self.options):
            raise UsageError(f"{self}: an option without a clock; only fixed kinds may leave it out")

    def __str__(self) -> str:
        return f"stage {self.stage} {self.kind}"

    @property
    def at_highest_clock(self) -> MeasuredOption:
        """The option of the highest clock, which is not always the fastest as measured."""
        return self.options[0]


@dataclass(frozen=True)
class PipelineProfile:
    """All instruction profiles of a pipeline, with what each stage draws while it waits.

    Attributes:
        instructions: One for each kind of each stage, in any order.
        blocking_power_watts: Power of one GPU while it waits; one number for all stages, or one for each.
        gpus: GPUs that run a stage together and share its clocks (tensor-parallel and data-parallel replicas); one
            number for all stages, or one for each. Times and energies in the profile are those of one GPU.

    Raises:
        UsageError: A stage is missing, a kind of a stage occurs twice, or a number is out of its range.
    """

    instructions: tuple[InstructionProfile, ...]
    blocking_power_watts: tuple[float, ...]
    gpus: tuple[int, ...]

    def __init__(
        self,
        instructions: Iterable[InstructionProfile],
        blocking_power_watts: float | Sequence[float],
        gpus: int | Sequence[int] = 1,
    ) -> None:
        ordered = tuple(sorted(instructions, key=lambda it: (it.stage, (COMPUTE_KINDS + FIXED_KINDS).index(it.kind))))
        stages = _check_stages(ordered)
        object.__setattr__(self, "instructions", ordered)
        object.__setattr__(self, "blocking_power_watts", _powers(blocking_power_watts, stages))
        object.__setattr__(self, "gpus", _counts(gpus, stages))

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.gpus)

    @cached_property
    def _by_stage_and_kind(self) -> Mapping[tuple[int, str], InstructionProfile]:
        return {(it.stage, it.kind): it for it in self.instructions}

    def find(self, stage: int, kind: str) -> InstructionProfile | None:
        """The profile of a kind on a stage; None if it was not measured."""
        return self._by_stage_and_kind.get((stage, kind))

    def get(self, stage: int, kind: str) -> InstructionProfile:
        """The profile of a kind on a stage.

        Raises:
            UsageError: It was not measured.
        """
        found = self.find(stage, kind)
        if found is None:
            kinds = [it.kind for it in self.instructions if it.stage == stage]
            raise UsageError(f"the profile has no {kind!r} of stage {stage}; it has {', '.join(kinds) or 'nothing'}")
        return found

    def effective_cost_joules(self, stage: int, option: MeasuredOption) -> float:
        """What running an option takes more than waiting as long, over all GPUs of the stage (Perseus, SOSP'24)."""
        waiting_joules = self.blocking_power_watts[stage] * option.time_seconds
        return self.gpus[stage] * (option.energy_joules - waiting_joules)

    def check_clocks(self, supported_mhz: Collection[int]) -> None:
        """Check that a device supports every clock.

        Raises:
            UsageError: It does not; the message names the instruction.
        """
        for it in self.instructions:
            for option in it.options:
                if option.clock_mhz is not None and option.clock_mhz not in supported_mhz:
                    nearest = min(supported_mhz, key=lambda clock: abs(clock - (option.clock_mhz or 0)))
                    raise UsageError(
                        f"{it}: the device does not support {option.clock_mhz} MHz; the nearest it does is {nearest}"
                    )

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of all numbers: two profiles with the same one are the same."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back; see `zeus_core.pipeline._profile_json`."""
        from zeus_core.pipeline._profile_json import profile_to_json

        return profile_to_json(self)

    @classmethod
    def from_json(cls, fields: Any) -> PipelineProfile:
        """Read what `to_json` wrote; see `zeus_core.pipeline._profile_json`."""
        from zeus_core.pipeline._profile_json import profile_from_json

        return profile_from_json(fields)

    def to_csv(self, path: str | Path) -> None:
        """Write the published column layout; see `zeus_core.pipeline._profile_csv`."""
        from zeus_core.pipeline._profile_csv import write_profile_csv

        write_profile_csv(self, Path(path))

    @classmethod
    def from_csv(
        cls, path: str | Path, blocking_power_watts: float | Sequence[float], gpus: int | Sequence[int] = 1
    ) -> PipelineProfile:
        """Read the published column layout; see `zeus_core.pipeline._profile_csv`."""
        from zeus_core.pipeline._profile_csv import read_profile_csv

        return read_profile_csv(Path(path), blocking_power_watts, gpus)


def _check_stages(instructions: Sequence[InstructionProfile]) -> int:
    if not instructions:
        raise UsageError("the profile is empty; it needs a forward and a backward of each stage")
    for it, following in pairwise(instructions):
        if (it.stage, it.kind) == (following.stage, following.kind):
            raise UsageError(f"the profile has {it} twice; give its options together")
    stages = {it.stage for it in instructions}
    missing = set(range(len(stages))) - stages
    if missing:
        raise UsageError(f"the profile has no instruction of stage {min(missing)}, but one of stage {max(stages)}")
    return len(stages)


def _powers(values: float | Sequence[float], stages: int) -> tuple[float, ...]:
    powers = _one_each(values, stages, "blocking_power_watts")
    for stage, power in enumerate(powers):
        if isinstance(power, bool) or not isinstance(power, int | float) or not 0 <= power < math.inf:
            raise UsageError(f"blocking_power_watts of stage {stage} is {power!r}; give watts, at least 0, such as 80")
    return tuple(float(power) for power in powers)


def _counts(values: int | Sequence[int], stages: int) -> tuple[int, ...]:
    counts = _one_each(values, stages, "gpus")
    for stage, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"gpus of stage {stage} is {count!r}; give a whole number of GPUs, at least 1")
    return tuple(counts)


def _one_each(values: Any, stages: int, name: str) -> list[Any]:
    if not isinstance(values, Sequence):
        return [values] * stages
    if len(values) != stages:
        raise UsageError(f"{name} has {len(values)} values, but the profile has {stages} stages")
    return list(values)
