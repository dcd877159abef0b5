"""One way to run an instruction, as measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zeus_core.errors import UsageError

__all__ = ["MeasuredOption"]

_HIGHEST_CLOCK_MHZ = 10_000  # above any GPU: such a number is a clock in kHz or Hz


@dataclass(frozen=True)
class MeasuredOption:
    """What an instruction takes at one clock, on one GPU.

    Attributes:
        clock_mhz: SM clock; None for work of a fixed kind that runs at whatever clock is set.
        time_seconds: Duration, above 0.
        energy_joules: Energy of one GPU over this duration, at least 0.
        time_stderr_seconds: Standard error of `time_seconds`; 0 if it is not known.
        energy_stderr_joules: Standard error of `energy_joules`; 0 if it is not known.

    Raises:
        UsageError: A number is out of its range, NaN included.
    """

    clock_mhz: int | None
    time_seconds: float
    energy_joules: float
    time_stderr_seconds: float = 0.0
    energy_stderr_joules: float = 0.0

    def __post_init__(self) -> None:
        _check_clock(self.clock_mhz)
        if not _is_number(self.time_seconds) or not 0 < self.time_seconds < math.inf:
            raise UsageError(f"time is {self.time_seconds!r}; it must be a number of seconds above 0")
        for name in ("energy_joules", "time_stderr_seconds", "energy_stderr_joules"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value < math.inf:
                raise UsageError(f"{name} is {value!r}; it must be a finite number, at least 0")


def _check_clock(clock_mhz: object) -> None:
    if clock_mhz is None:
        return
    if isinstance(clock_mhz, bool) or not isinstance(clock_mhz, int):
        raise UsageError(f"frequency is {clock_mhz!r}, a {type(clock_mhz).__name__}; it must be an int, such as 1410")
    if not 0 < clock_mhz < _HIGHEST_CLOCK_MHZ:
        raise UsageError(f"frequency is {clock_mhz!r}; no device supports that: it must be whole MHz, such as 1410")


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e300)
