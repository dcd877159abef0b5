"""Measured profiles: time and energy of each instruction of each pipeline stage at each clock."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import MAX_QUANTITY, MeasuredOption
from zeus_core.pipeline.planner.pipeline_profile_csv import read_blocking, read_options, write_options
from zeus_core.pipeline.planner.pipeline_schedule import BLOCKING_KIND, FIXED_KINDS, PROFILED_KINDS, check_kind
from zeus_core.validate import (
    checked_number,
    checked_path,
    checked_whole_number,
    shown,
)

_MAX_GPUS = 1_000_000  # more than any cluster has


@dataclass(frozen=True)
class InstructionProfile:
    """The options of one kind of instruction on one stage.

    A kind whose clock is chosen (`COMPUTE_KINDS`) needs at least two options: a single one means unfinished profiling.
    A fixed kind (`FIXED_KINDS`) has exactly one. The kind `blocking` is no work: energy over time of its options is the
    power of a GPU that waits at these clocks.

    Attributes:
        stage: Pipeline stage, from 0.
        kind: One of `COMPUTE_KINDS` and `FIXED_KINDS`, or `blocking`.
        options: One per clock; sorted here, the highest clock first.

    Raises:
        UsageError: The options do not fit the kind, or a clock occurs twice.
    """

    stage: int
    kind: str
    options: tuple[MeasuredOption, ...]

    def __post_init__(self) -> None:
        """Check all values, and sort the options."""
        object.__setattr__(self, "stage", checked_whole_number("stage", self.stage, 0))
        check_kind(self.kind, PROFILED_KINDS, f"stage {self.stage}")
        options = tuple(sorted(self.options, key=lambda option: -(option.clock_mhz or 0)))
        object.__setattr__(self, "options", options)
        if self.kind in FIXED_KINDS:
            if len(options) != 1:
                raise UsageError(f"{self}: {len(options)} options; a fixed kind has exactly one")
            return
        if len(options) < (1 if self.kind == BLOCKING_KIND else 2):
            raise UsageError(f"{self}: {len(options)} option(s); measure it at two clocks at least")
        clocks = [option.clock_mhz for option in options]
        if None in clocks:
            raise UsageError(f"{self}: an option without a clock; only fixed kinds may leave it out")
        for clock, following in pairwise(clocks):
            if clock == following:
                raise UsageError(f"{self}: {clock} MHz occurs twice; keep one row for each clock")

    def __str__(self) -> str:
        return f"stage {self.stage} {self.kind}"

    @property
    def at_highest_clock(self) -> MeasuredOption:
        """The option of the highest clock. It is not always the fastest as measured."""
        return self.options[0]


@dataclass(frozen=True)
class PipelineProfile:
    """All instruction profiles of a pipeline, and the blocking power of each stage.

    Attributes:
        instructions: One for each kind of each stage, in any order.
        blocking_power_watts: Power of one GPU that waits for a neighbour; one number for all stages, or one for each.
            None if each stage has a `blocking` profile: it is then the lowest of the stage, and waiting at each clock
            costs what was measured there.
        gpus: GPUs that run a stage together and share its clocks (tensor-parallel and data-parallel replicas); one
            number for all stages, or one for each. Times and energies in the profile are those of one GPU.
        node_power_watts: Power that the rest of the node draws for each GPU at any clocks: CPUs, memory, fans.
            The energy of an iteration includes it; energies in the profile do not.

    Raises:
        UsageError: A stage is missing, a kind of a stage occurs twice, or a number is out of its range.
    """

    instructions: tuple[InstructionProfile, ...]
    blocking_power_watts: tuple[float, ...]
    gpus: tuple[int, ...]
    node_power_watts: float = 0.0

    def __init__(
        self,
        instructions: Iterable[InstructionProfile],
        blocking_power_watts: float | Sequence[float] | None,
        gpus: int | Sequence[int] = 1,
        node_power_watts: float = 0.0,
    ) -> None:
        ordered = tuple(sorted(instructions, key=lambda profile: (profile.stage, PROFILED_KINDS.index(profile.kind))))
        stages = _check_stages(ordered)
        powers = _blocking_powers(ordered, blocking_power_watts, stages)
        counts = _one_each(gpus, stages, "gpus")
        object.__setattr__(self, "instructions", ordered)
        object.__setattr__(
            self,
            "blocking_power_watts",
            tuple(
                checked_number(
                    f"blocking_power_watts of stage {stage}", power, 0.0, MAX_QUANTITY, "watts, 0 to 1e9, such as 80"
                )
                for stage, power in enumerate(powers)
            ),
        )
        object.__setattr__(
            self,
            "gpus",
            tuple(_checked_gpus(stage, count) for stage, count in enumerate(counts)),
        )
        wanted = "watts for each GPU, 0 to 1e9, such as 200"
        node_watts = checked_number("node_power_watts", node_power_watts, 0.0, MAX_QUANTITY, wanted)
        object.__setattr__(self, "node_power_watts", node_watts)

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.gpus)

    @cached_property
    def _by_stage_and_kind(self) -> Mapping[tuple[int, str], InstructionProfile]:
        return {(profile.stage, profile.kind): profile for profile in self.instructions}

    def find(self, stage: int, kind: str) -> InstructionProfile | None:
        """Return the profile of a kind on a stage; None if it was not measured."""
        return self._by_stage_and_kind.get((stage, kind))

    def get(self, stage: int, kind: str) -> InstructionProfile:
        """Return the profile of a kind on a stage.

        Raises:
            UsageError: It was not measured.
        """
        profile = self.find(stage, kind)
        if profile is None:
            kinds = [profile.kind for profile in self.instructions if profile.stage == stage]
            raise UsageError(f"the profile has no {kind!r} of stage {stage}; it has {', '.join(kinds) or 'nothing'}")
        return profile

    def effective_cost_joules(self, stage: int, option: MeasuredOption) -> float:
        """Return the energy of an option above that of blocking as long, over all GPUs of the stage."""
        blocking_joules = self.blocking_power_watts[stage] * option.time_seconds
        return self.gpus[stage] * (option.energy_joules - blocking_joules)

    def check_clocks(self, supported_mhz: Collection[int]) -> None:
        """Check that a device supports every clock.

        Raises:
            UsageError: It does not; the message names the instruction.
        """
        for profile in self.instructions:
            for option in profile.options:
                clock = option.clock_mhz
                if clock is not None and clock not in supported_mhz:
                    nearest = min(supported_mhz, key=lambda supported: abs(supported - clock))
                    raise UsageError(
                        f"{profile}: the device does not support {clock} MHz; its nearest clock is {nearest} MHz"
                    )

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of all numbers: two profiles are equal if theirs are."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that holds the whole profile, the blocking power included."""
        document = _PROFILE.to_json(self)
        if not self.node_power_watts:  # the fingerprints of profiles stay
            del document["node_power_watts"]
        return document

    @classmethod
    def from_json(cls, document: Any) -> PipelineProfile:
        """Return the profile in the result of `to_json`.

        Raises:
            UsageError: It is not a profile; the message names the field.
        """
        return _PROFILE.from_json(document)

    def to_csv(self, path: str | Path) -> None:
        """Write the published column layout, without blocking power and numbers of GPUs.

        Raises:
            OSError: The file cannot be written.
        """
        path = checked_path("path", path, "profile.csv")
        rows = [(profile.stage, profile.kind, option) for profile in self.instructions for option in profile.options]
        write_options(Path(path), rows)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        blocking_power_watts: float | Sequence[float] | str | os.PathLike[str] | None,
        gpus: int | Sequence[int] = 1,
        node_power_watts: float = 0.0,
    ) -> PipelineProfile:
        """Read the published column layout: `stage,instruction,frequency,time,energy`.

        Args:
            path: The file.
            blocking_power_watts: See `PipelineProfile`. Or a CSV file of lowtime, `freq,time_ms,energy_mj`: what
                waiting draws at each clock, on all stages.
            gpus: See `PipelineProfile`.
            node_power_watts: See `PipelineProfile`.

        Raises:
            UsageError: The file cannot be read, or a row is wrong; the message names the file and the line.
        """
        options = read_options(Path(checked_path("path", path, "profile.csv")))
        if isinstance(blocking_power_watts, (str, os.PathLike)):
            blocking = read_blocking(Path(checked_path("blocking_power_watts", blocking_power_watts, "p2p.csv")))
            rows_of = {(stage, BLOCKING_KIND): blocking for stage, _ in options}
            if rows_of.keys() & options.keys():
                raise UsageError(f"{path} has 'blocking' rows, and blocking_power_watts is a file; leave one out")
            options, blocking_power_watts = {**options, **rows_of}, None
        try:
            profiles = [InstructionProfile(stage, kind, tuple(rows)) for (stage, kind), rows in options.items()]
            return cls(profiles, blocking_power_watts, gpus, node_power_watts)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error


_PROFILE = Document("zeus-core pipeline profile", 2, PipelineProfile, "the profile")


def _check_stages(instructions: Sequence[InstructionProfile]) -> int:
    if not instructions:
        raise UsageError("the profile is empty; it needs a forward and a backward of each stage")
    for profile, following in pairwise(instructions):
        if (profile.stage, profile.kind) == (following.stage, following.kind):
            raise UsageError(f"the profile has {profile} twice; give its options together")
    stages = {profile.stage for profile in instructions}
    missing = set(range(len(stages))) - stages
    if missing:
        raise UsageError(f"the profile has no instruction of stage {min(missing)}, but one of stage {max(stages)}")
    return len(stages)


def _blocking_powers(
    instructions: Sequence[InstructionProfile], given: float | Sequence[float] | None, stages: int
) -> list[Any]:
    """Return the power of waiting of each stage: as given, or the lowest that was measured."""
    lowest = {
        profile.stage: min(option.energy_joules / option.time_seconds for option in profile.options)
        for profile in instructions
        if profile.kind == BLOCKING_KIND
    }
    measured = [lowest.get(stage) for stage in range(stages)]
    if lowest and None in measured:
        raise UsageError(
            f"stage {measured.index(None)} has no 'blocking' rows, but stage {min(lowest)} has; measure all stages"
        )
    if given is None and not lowest:
        raise UsageError(
            "blocking_power_watts is None, and the profile has no 'blocking' rows; give the watts of a GPU that waits, "
            "such as 80"
        )
    powers = measured if given is None else _one_each(given, stages, "blocking_power_watts")
    if lowest and powers != measured:
        raise UsageError(
            f"blocking_power_watts is {shown(given)}, but the profile has 'blocking' rows, the power of waiting at "
            "each clock; leave one of them out"
        )
    return powers


def _one_each(values: Any, stages: int, name: str) -> list[Any]:
    if not isinstance(values, Sequence):
        return [values] * stages
    if len(values) != stages:
        raise UsageError(f"{name} has {len(values)} values, but the profile has {stages} stages")
    return list(values)


def _checked_gpus(stage: int, count: int) -> int:
    wanted = f"the number of GPUs that share the stage, 1 to {_MAX_GPUS}"
    return checked_whole_number(f"gpus of stage {stage}", count, 1, wanted, _MAX_GPUS)
