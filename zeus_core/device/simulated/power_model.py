"""The physics of simulated GPUs: time and power as functions of the power limit and the SM clock.

The clock is written as a fraction f of the highest. At f the voltage is max(v, 1 - s (1 - f)) of the highest, so that

    y(f) = f * max(v, 1 - s (1 - f))^2             dynamic power, as a fraction of that at the full clock
    P(f) = Ps + (Pa - Ps) y(f)                     power while computing
    f    = the highest fraction with P(f) <= rho * limit, at most the locked clock, at least fmin
    active seconds = t0 d (1 - k + k / f)          the compute-bound share k of the active time stretches with 1/f
    seconds        = t0 (1 - d) + active seconds   the rest of the time the GPU is blocked, at Pi

Fitted to public sweeps of power limits, the model is within 0.3 to 2.3 % of the measured curves in time and energy
(see `presets.py`), and a locked clock enters as an upper bound on f.
"""

import math
from dataclasses import dataclass

from zeus_core.validate import checked_number

_BISECTIONS = 60  # more than the 53 bits of a float between 0 and 1


@dataclass(frozen=True)
class Work:
    """A piece of computation, described by how it runs at the full clock and no power limit.

    Attributes:
        seconds: Duration (t0), positive.
        active_power_watts: Power while computing (Pa), positive. May exceed what any limit allows.
        active_fraction: Share of the duration in which the GPU computes and is not blocked (d), above 0 up to 1.
        compute_bound_fraction: Share of the active time that stretches as the SM clock falls (k), 0 to 1; the rest is
            bound by memory and does not.
    """

    seconds: float
    active_power_watts: float
    active_fraction: float = 1.0
    compute_bound_fraction: float = 0.8

    def __post_init__(self) -> None:
        """Check every field against its range."""
        positive = math.nextafter(0.0, 1.0)
        for name, minimum, maximum, wanted in (
            ("seconds", positive, math.inf, "a positive number of seconds, such as 0.1"),
            ("active_power_watts", positive, math.inf, "positive, such as 450.0"),
            ("active_fraction", positive, 1.0, "above 0 up to 1, such as 0.9"),
            ("compute_bound_fraction", 0.0, 1.0, "0 (memory-bound) to 1 (compute-bound), such as 0.7"),
        ):
            value = checked_number(f"Work.{name}", getattr(self, name), minimum, maximum, wanted)
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class OperatingPoint:
    """The state a GPU settles in for some work under a limit and a clock.

    Attributes:
        clock_fraction: SM clock over the highest SM clock.
        active_power_watts: Power while computing.
        active_seconds: Time the whole work computes.
        blocking_seconds: Time the whole work is blocked.
        blocking_power_watts: Power while blocked.
    """

    clock_fraction: float
    active_power_watts: float
    active_seconds: float
    blocking_seconds: float
    blocking_power_watts: float

    @property
    def seconds(self) -> float:
        """Duration of the whole work."""
        return self.active_seconds + self.blocking_seconds

    @property
    def energy_joules(self) -> float:
        """Energy of the whole work."""
        return self.active_seconds * self.active_power_watts + self.blocking_seconds * self.blocking_power_watts


@dataclass(frozen=True)
class GpuPhysics:
    """The parameters of one GPU model.

    Attributes:
        static_power_watts: Power at the end of all clocks (Ps).
        blocking_power_watts: Power while blocked by the host, by data or by other GPUs (Pi).
        lowest_voltage_fraction: v.
        voltage_slope: s.
        lowest_clock_fraction: fmin.
        regulated_fraction: The power the board regulates to, over its limit (rho).
    """

    static_power_watts: float
    blocking_power_watts: float
    lowest_voltage_fraction: float
    voltage_slope: float
    lowest_clock_fraction: float
    regulated_fraction: float

    def power_watts(self, work: Work, clock_fraction: float) -> float:
        """Return P(f), the power while computing `work` at a clock."""
        voltage_fraction = max(self.lowest_voltage_fraction, 1 - self.voltage_slope * (1 - clock_fraction))
        dynamic_fraction = clock_fraction * voltage_fraction**2
        return self.static_power_watts + (work.active_power_watts - self.static_power_watts) * dynamic_fraction

    def operating_point(self, work: Work, limit_watts: float, locked_clock_fraction: float = 1.0) -> OperatingPoint:
        """Return the point at which the GPU computes `work` under a power limit and at most a locked clock."""
        clock_fraction = self._highest_clock_fraction(work, limit_watts, locked_clock_fraction)
        stretch = 1 - work.compute_bound_fraction + work.compute_bound_fraction / clock_fraction
        return OperatingPoint(
            clock_fraction=clock_fraction,
            active_power_watts=self.power_watts(work, clock_fraction),
            active_seconds=work.seconds * work.active_fraction * stretch,
            blocking_seconds=work.seconds * (1 - work.active_fraction),
            blocking_power_watts=self.blocking_power_watts,
        )

    def _highest_clock_fraction(self, work: Work, limit_watts: float, locked_clock_fraction: float) -> float:
        budget_watts = self.regulated_fraction * limit_watts
        low, high = self.lowest_clock_fraction, max(self.lowest_clock_fraction, locked_clock_fraction)
        if self.power_watts(work, high) <= budget_watts:
            return high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if self.power_watts(work, middle) <= budget_watts:
                low = middle
            else:
                high = middle
        return low
