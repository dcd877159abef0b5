"""The parts of the ranks in a trial, put together; and several trials at one setting as one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zeus_core.measurement import Measurement
from zeus_core.search import Trial

__all__ = ["TrialPart", "finite", "pooled_trial", "trial_from_parts"]


@dataclass(frozen=True)
class TrialPart:
    """The part of one rank in a block.

    Attributes:
        steps: The steps it measured.
        measurement: Their time, and the energy of its GPUs; None without steps.
        step_seconds_deviation: Standard deviation of the duration of one step, in seconds.
        is_spoiled: Whether the part holds work that is not training.
        run_seconds: The time of all steps since training began, without pauses.
        clocks_mhz: Mean SM clocks under load, of its GPUs where they are known.
    """

    steps: int
    measurement: Measurement | None
    step_seconds_deviation: float
    is_spoiled: bool
    run_seconds: float
    clocks_mhz: tuple[float, ...] = ()


def trial_from_parts(setting: int, parts: Sequence[TrialPart]) -> Trial | None:
    """Return the trial that all ranks had a part in; None if energy was lost, or ranks measured different steps.

    It lasted as long as on the slowest rank. Its energy is that of all GPUs, each counted once.
    """
    steps = parts[0].steps
    measurements = [part.measurement for part in parts if part.measurement is not None]
    if not measurements or any(part.steps != steps or part.is_spoiled for part in parts):
        return None
    measurement = Measurement.from_ranks(measurements)
    if finite(measurement.total_energy) is None or not 0 < measurement.time < math.inf:
        return None
    deviation = max(part.step_seconds_deviation for part in parts)
    clocks_mhz = [clock_mhz for part in parts for clock_mhz in part.clocks_mhz]
    return Trial(setting, steps, measurement, deviation, min(clocks_mhz, default=None), max(clocks_mhz, default=None))


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


def finite(joules: float | None) -> float | None:
    """Return an energy; None if it is not finite."""
    return joules if joules is not None and math.isfinite(joules) else None
