"""A trial: one setting of a knob, and the measurement of training at it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.validate import checked_number, checked_whole_number


@dataclass(frozen=True)
class Trial:
    """The measurement of some training steps at one setting of a knob.

    Attributes:
        setting: The setting, in the unit of its knob (watts, MHz).
        steps: How many training steps were measured.
        measurement: Their time and energy; no energy in it is lost.
        step_seconds_deviation: Standard deviation of the duration of one step, in seconds.
        lowest_clock_mhz: Mean SM clock under load, of the GPU with the lowest; None if it is not known.
        highest_clock_mhz: The same, of the GPU with the highest.

    Raises:
        UsageError: An attribute cannot be, such as a measurement that lasts no time.
    """

    setting: int
    steps: int
    measurement: Measurement
    step_seconds_deviation: float = 0.0
    lowest_clock_mhz: float | None = None
    highest_clock_mhz: float | None = None

    def __post_init__(self) -> None:
        """Check the attributes."""
        object.__setattr__(self, "setting", checked_whole_number("Trial.setting", self.setting, 1))
        object.__setattr__(self, "steps", checked_whole_number("Trial.steps", self.steps, 1))
        if not self.measurement.time > 0 or self.measurement.total_energy is None:
            raise UsageError(f"the trial at {self.setting} has no time or no energy")
        wanted = "seconds, at least 0"
        checked_number("Trial.step_seconds_deviation", self.step_seconds_deviation, 0.0, math.inf, wanted)
        for name in ("lowest_clock_mhz", "highest_clock_mhz"):
            if getattr(self, name) is not None:
                checked_number(f"Trial.{name}", getattr(self, name), 1.0, math.inf, "MHz, at least 1, or None")

    @property
    def seconds_per_step(self) -> float:
        """Mean duration of a step."""
        return self.measurement.time / self.steps

    @property
    def joules_per_step(self) -> float:
        """Mean energy of a step, of all GPUs together."""
        return (self.measurement.total_energy or 0.0) / self.steps

    @property
    def seconds_per_step_stderr(self) -> float:
        """Standard error of `seconds_per_step`."""
        return self.step_seconds_deviation / math.sqrt(self.steps)


@dataclass(frozen=True)
class Visit:
    """A block of steps at one setting.

    Attributes:
        trial: The measured steps.
        run_steps: All steps of the run until its end.
        is_own: Whether it was in this part of the run, that of the present process.
    """

    trial: Trial
    run_steps: int
    is_own: bool = True


def pooled_by_setting(trials: Iterable[Trial]) -> dict[int, Trial]:
    """Return one trial for each setting; see `pooled_trial`."""
    pooled: dict[int, Trial] = {}
    for trial in trials:
        pooled[trial.setting] = pooled_trial([pooled.get(trial.setting), trial])
    return pooled


def pooled_trial(trials: Sequence[Trial | None]) -> Trial:
    """Return some trials as one, at the setting of the last; only the last, if they measured different devices.

    The uncertainties of the energies add in squares: they are those of the edges of windows, which are independent, or
    cancel where one window begins at the end of another.

    Args:
        trials: The trials. Those that are None are left out; the last one is not.
    """
    *others, last = [trial for trial in trials if trial is not None]
    devices = last.measurement.devices.keys()
    if not others or any(trial.measurement.devices.keys() != devices for trial in others):
        return last
    pooled = [*others, last]
    freedom = sum(trial.steps - 1 for trial in pooled)
    squares = math.fsum((trial.steps - 1) * trial.step_seconds_deviation**2 for trial in pooled)
    return Trial(
        last.setting,
        sum(trial.steps for trial in pooled),
        _pooled_measurement([trial.measurement for trial in pooled]),
        math.sqrt(squares / freedom) if freedom else 0.0,
        last.lowest_clock_mhz,
        last.highest_clock_mhz,
    )


def _pooled_measurement(measurements: Sequence[Measurement]) -> Measurement:
    total = sum(measurements[1:], start=measurements[0])
    devices = {
        device: replace(
            energy,
            uncertainty_joules=math.hypot(*(one.devices[device].uncertainty_joules or 0.0 for one in measurements)),
        )
        for device, energy in total.devices.items()
    }
    return Measurement(total.time, devices)
