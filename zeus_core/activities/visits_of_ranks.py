"""The visits of an activity on all ranks: whether its block is over, the block, and how long ranks wait. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from zeus_core.measurement import DeviceEnergy, Measurement
from zeus_core.optimizer.global_setting.trials import TrialPart, trial_from_parts
from zeus_core.optimizer.search_state import MeasuredBlock

_FIRST_VISITS = 5  # in the first block of an activity, which rank 0 has not ordered
_COMMON_ERROR = 0.25  # of the uncertainty of a visit: 0.16 with 620 W before 300 W, and an update each 0.1 s


@dataclass(frozen=True)
class VisitsPart:
    """The part of one rank in a block of an activity.

    Attributes:
        setting: The setting of the measured visits.
        part: The measured visits since the last time.
        visits: All visits of the run so far.
    """

    setting: int
    part: TrialPart
    visits: int


def due_of(ranks: Sequence[Mapping[str, int]], orders: Mapping[str, int], with_choices: bool) -> list[str]:
    """Return the activities whose block is over on a rank, by the visits that were measured on each.

    Args:
        ranks: The measured visits of each rank, by activity.
        orders: See `ActivityOrder.visits`.
        with_choices: Whether a block at a choice is over after any visit: it ends with that of the steps.
    """
    due = []
    for name in dict.fromkeys(name for measured in ranks for name in measured):
        ordered = orders.get(name, _FIRST_VISITS)
        enough = 1 if with_choices and ordered < 0 else abs(ordered)
        if max(measured.get(name, 0) for measured in ranks) >= enough:
            due.append(name)
    return due


def merged(ranks: Sequence[Mapping[str, VisitsPart]]) -> dict[str, MeasuredBlock]:
    """Return the blocks of activities from the parts of the ranks that have visited them.

    A visit lasts as long as on the slowest of them, and takes the energy of all of them.
    """
    blocks = {}
    for name in dict.fromkeys(name for parts in ranks for name in parts):
        parts = [one[name] for one in ranks if name in one]
        steps = max(one.part.steps for one in parts)
        trial = trial_from_parts(parts[0].setting, [_for_visits(one.part, steps) for one in parts])
        if trial is not None:
            seconds = max(one.part.run_seconds for one in parts)
            blocks[name] = MeasuredBlock(trial, max(one.visits for one in parts), seconds)
    return blocks


def waiting_share(ranks: Sequence[Mapping[str, VisitsPart]], name: str) -> float:
    """Return the share of the visits of an activity in which ranks wait for the slowest one.

    With the mean times t of a visit on n ranks, and a standard deviation s of one visit, the slowest takes

        max(max t, mean t + z s),    z = Phi^-1((n - 3/8) / (n + 1/4))        (Blom 1958)

    on average. Ranks without a visit wait for all of it.
    """
    parts = [one[name].part for one in ranks if name in one]
    seconds = [part.measurement.time / part.steps for part in parts if part.measurement is not None]
    if not seconds or len(ranks) == 1:
        return 0.0
    quantile = NormalDist().inv_cdf((len(seconds) - 0.375) / (len(seconds) + 0.25))
    slowest = max(*seconds, fmean(seconds) + quantile * fmean(part.step_seconds_deviation for part in parts))
    return 1 - math.fsum(seconds) / (len(ranks) * slowest)


def _for_visits(part: TrialPart, steps: int) -> TrialPart:
    """Return a part as if it were of so many visits.

    The energy of each is uncertain by where its ends lie between two updates of a counter. So these errors are
    independent of each other, but for the power before a visit, of which half an update is charged to it on average.
    """
    measurement, times = part.measurement, steps / max(part.steps, 1)
    if measurement is None:
        return part
    devices = {
        device: DeviceEnergy.lost(energy.lost_because or "")
        if energy.energy_joules is None or energy.uncertainty_joules is None
        else DeviceEnergy(
            times * energy.energy_joules,
            times * energy.uncertainty_joules * max(1 / math.sqrt(part.steps), _COMMON_ERROR),
            energy.method,
        )
        for device, energy in measurement.devices.items()
    }
    return replace(part, steps=steps, measurement=Measurement(times * measurement.time, devices))
