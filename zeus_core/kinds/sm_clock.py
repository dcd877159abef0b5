"""The SM clock at which a GPU is locked, in MHz."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from zeus_core.errors import UsageError
from zeus_core.kinds.kind import Kind
from zeus_core.validate import shown


class SmClock(Kind):
    """The clock that the SMs run at, or below where the power limit holds them down.

    The driver reports the clock a GPU runs at, but not whether, or where, it is locked. A GPU is assumed to have been
    unlocked originally, unless a user gives the clock it was locked at.
    """

    name: str = "sm_clock"
    words: str = "SM clock"
    unit: str = "MHz"
    unit_name: str = "mhz"
    option: str = "clock"
    free = "unlocked"
    is_readable = False
    has_curves = True
    locks_sm_clock = True
    lowers_sm_clock = True
    steepest_exponent: float = 1.0  # what computes takes as much longer as the clock is lower, and the rest does not
    saves_waiting = True
    joins_auto = True
    is_usual = True
    is_allowed_unnamed = True
    tolerance: float = 30.0  # clocks come in steps of 7.5 to 15 MHz, and a reading may be rounded to the next

    def read(self, gpu: Any) -> None:
        """Return None: the driver does not report it."""

    def read_running(self, gpu: Any) -> float:
        """Read the clock of this moment."""
        return float(gpu.read_sm_clock_mhz())

    def read_accepted(self, gpu: Any) -> Sequence[float]:
        """Read the clocks that the GPU supports."""
        clocks_mhz: Sequence[float] = gpu.read_supported_sm_clocks_mhz()
        return clocks_mhz

    def set(self, gpu: Any, value: float | None) -> None:
        """Lock the clock; None unlocks it."""
        if value is None:
            gpu.unlock_sm_clock()
        else:
            gpu.lock_sm_clock(round(value))

    def command(self, uuids: Iterable[str], value: float | None) -> str:
        """Return a command of nvidia-smi."""
        return f"sudo nvidia-smi -i {','.join(uuids)} " + ("-rgc" if value is None else f"-lgc {value:g}")

    def check_accepted(self, value: float, accepted: Collection[float], gpu_name: str) -> None:
        """Raise `UsageError` for a clock that a GPU does not support."""
        if value not in accepted:
            raise UsageError(f"{value:g} {self.unit} is no {self.words} that {gpu_name} supports")

    def usable(self, gpu_name: str, accepted: Sequence[float], original: float | None) -> tuple[float, ...]:
        """Return the clocks that a GPU supports, up to the one it was locked at."""
        super().usable(gpu_name, accepted, original)
        if original is not None and original not in accepted:
            raise UsageError(
                f"original_clock_mhz is {original!r}; {gpu_name} supports {accepted[0]} down to {accepted[-1]} MHz"
            )
        return tuple(clock for clock in accepted if original is None or clock <= original)

    def common_settings(self, each: Iterable[Sequence[float]]) -> tuple[int, ...]:
        """Return the highest clock of any GPU or rank, and the lower ones that all support."""
        first, *others = [tuple(map(int, clocks)) for clocks in each]
        highest = max(clocks[0] for clocks in (first, *others))
        shared = set(first).intersection(*others)
        return (highest, *sorted((clock for clock in shared if clock < highest), reverse=True))

    def check(self, setting: int, settings: Sequence[int]) -> None:
        """Raise `UsageError` for a clock that is none of the settings."""
        if setting not in settings:
            raise UsageError(
                f"an SM clock of {shown(setting)} MHz is none of the settings, which run from {settings[0]} down to "
                f"{settings[-1]} MHz: choose one that the GPUs support"
            )

    def with_arguments(self, step: int | None, original_clock_mhz: int | None) -> Self:
        """Return this kind with the clock that the GPUs were locked at."""
        return type(self)(original=original_clock_mhz)

    @property
    def arguments(self) -> Mapping[str, int | str]:
        """The arguments that must be the same on all ranks, by name."""
        return {"knob": self.words, "original_clock_mhz": self.original or 0}

    def state_text(self, setting: int, is_original: bool) -> str:
        """Return a clock in words; GPUs that are not locked choose their own."""
        return f"{self.free} clock" if is_original and self.original is None else self.text(setting)


SM_CLOCK = SmClock()
