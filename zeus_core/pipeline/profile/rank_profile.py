"""The measured profile of one rank: time and energy of its instructions at each clock."""

from __future__ import annotations

from dataclasses import dataclass

from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS

# Standard error of an energy that is good enough to plan with, as a fraction of the greatest energy at the clock.
# Trades profiling time (it falls with the square root of the steps) for plans: the search itself resolves 0.4 %.
_MAX_STDERR_FRACTION = 0.01


@dataclass(frozen=True)
class InstructionRow:
    """Time and energy of one kind of instruction of a stage at one clock.

    Attributes:
        stage: Stage.
        kind: Kind.
        clock_mhz: SM clock; None for the original clock.
        time_seconds: Median duration.
        time_stderr_seconds: Its standard error.
        energy_joules: Energy over that duration; None if it could not be determined.
        energy_stderr_joules: Its standard error; 0.0 if the energy is unknown.

    Raises:
        ValueError: A number is below 0.
    """

    stage: int
    kind: str
    clock_mhz: int | None
    time_seconds: float
    time_stderr_seconds: float
    energy_joules: float | None
    energy_stderr_joules: float

    def __post_init__(self) -> None:
        """Check the numbers, which may come from a file."""
        _check_not_negative(self)


@dataclass(frozen=True)
class RankProfile:
    """Measurements of one rank.

    Attributes:
        rows: One for each kind of instruction at each clock.
        blocking_power_watts: Power while the rank waits; None if it waited too little to measure it.
        switch_seconds: Median time the driver took to set a clock; 0.0 if none was set.
        blocking_watts_by_clock: The highest and the lowest measured clock with the power while the rank waits, which
            is linear in between; empty if it was not seen to fall with the clock. The first is `blocking_power_watts`.

    Raises:
        ValueError: A number is below 0.
    """

    rows: tuple[InstructionRow, ...]
    blocking_power_watts: float | None
    switch_seconds: float = 0.0
    blocking_watts_by_clock: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers, which may come from a file."""
        _check_not_negative(self)

    def rows_at(self, clock_mhz: int | None) -> list[InstructionRow]:
        """Return the rows of computations at a clock."""
        return [row for row in self.rows if row.kind in COMPUTE_KINDS and row.clock_mhz == clock_mhz]

    def is_precise(self, clock_mhz: int | None) -> bool:
        """Return whether all energies at a clock are known well enough to plan with."""
        rows = self.rows_at(clock_mhz)
        max_joules = max((row.energy_joules or 0.0 for row in rows), default=0.0)
        return all(
            row.energy_joules is not None and row.energy_stderr_joules <= _MAX_STDERR_FRACTION * max_joules
            for row in rows
        )


def _check_not_negative(record: InstructionRow | RankProfile) -> None:
    for name, value in vars(record).items():
        if isinstance(value, int | float) and not value >= 0:
            raise ValueError(f"{name} is {value!r}; it must be at least 0")
