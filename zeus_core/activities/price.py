"""The settings of several activities at one price of a second. Pure arithmetic.

Activity a at a setting s takes the energy E_a(s) in the rest of the run, and leaves M_a(s) seconds below the bound of
the whole run, with a variance V_a(s). Activities are independent, so that the run keeps its bound with the probability
of a normal quantile z, and is beyond it by less than X seconds with that of z', if

    sum M_a(s_a) >= max(z sqrt(V), z' sqrt(V) - X),    V = sum V_a(s_a).

At a price of lambda joules per second each activity on its own minimises

    E_a(s) - lambda (M_a(s) - rho V_a(s)),

where rho is the derivative of the right side by V, as found in the round before. The lowest lambda that keeps the bound
is found by bisection. The rest of the bound goes to one activity after another; the result is compared with the
best setting for all, from which the same is tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zeus_core.search.belief import Curves
from zeus_core.search.run.run_plan import RunProgress

Array = NDArray[np.float64]

_LOWEST, _HIGHEST = math.log(1e-4), math.log(1e4)  # of the price, over the mean power of the work
_BISECTIONS = 30  # to a relative 2e-8
_ROUNDS = 3  # of rho, and
_SWEEPS = 2  # over all activities: more change nothing in most cases; chosen without runs

# Of a trial: how much of the time it may use up that is surely left below the bound, and how much of the energy of the
# run is to be gained by it, at least, beyond its own cost. 32 runs of benchmarks/activities.py (4 mixes, bounds of 1.02
# and 1.05, 500 cycles, spreads of 2 and 10 %, 2026-11-27) save 14.6 % of the energy with the values here; with more
# visits in a trial 14.3, twice the time 14.4, and three times the gain 14.3.
_AFFORDABLE = 0.1
LEAST_GAIN = 0.0003


@dataclass(frozen=True)
class Stake:
    """The rest of a run of one activity, at each setting.

    Attributes:
        joules: Its energy; infinite where the setting may not be chosen.
        spare: The seconds that the activity leaves below the bound in the whole run.
        variance: Their variance.
        original_seconds: Its time in the whole run at the original setting.
    """

    joules: Array
    spare: Array
    variance: Array
    original_seconds: float

    def hopeful(self, deviations: float) -> Stake:
        """Return the stake if steps are quicker by so many standard deviations, at the same power.

        They are not quicker than at the original setting.
        """
        quicker = deviations * np.sqrt(np.maximum(self.variance - self.variance[0], 0.0))
        quicker = np.minimum(quicker, np.maximum(self.spare[0] - self.spare, 0.0))
        joules = self.joules * (1 - quicker / self.original_seconds)
        return Stake(joules, self.spare + quicker, self.variance, self.original_seconds)

    def __add__(self, other: Stake) -> Stake:
        """Return two activities as one, which are always at the same setting."""
        return Stake(
            self.joules + other.joules,
            self.spare + other.spare,
            self.variance + other.variance,
            self.original_seconds + other.original_seconds,
        )


@dataclass(frozen=True)
class Demand:
    """How surely a run is to keep its bound.

    Attributes:
        quantile: z.
        excess_quantile: z'.
        excess_seconds: X.
        given_seconds: Seconds below the bound that no setting changes.
    """

    quantile: float
    excess_quantile: float
    excess_seconds: float
    given_seconds: float

    def is_met(self, spare: Array | float, variance: Array | float) -> NDArray[np.bool_]:
        """Return whether so many seconds below the bound are enough."""
        deviation = np.sqrt(np.maximum(variance, 0.0))
        wanted = np.maximum(self.quantile * deviation, self.excess_quantile * deviation - self.excess_seconds)
        return np.asarray(spare + self.given_seconds >= wanted)

    def variance_price(self, variance: float) -> float:
        """Return rho: the seconds that a further unit of variance takes."""
        deviation = math.sqrt(max(variance, 1e-18))
        is_far = self.excess_quantile * deviation - self.excess_seconds > self.quantile * deviation
        return max(self.excess_quantile if is_far else self.quantile, 0.0) / (2 * deviation)


@dataclass(frozen=True)
class SharedBound:
    """The part of the bound of a run that an activity may use.

    Attributes:
        factor: The slowdown bound of its own time, if its curves are as good as they may be.
        spare: The seconds that the other activities leave below the bound; by setting, with those that follow it.
        variance: Their variance.
        excess_seconds: The seconds by which that is more below a bound that is 1 % higher.
        following: The activities that follow it.
        aim: The place of its setting if its curves are as good as they may be.
        gain: The joules that are saved then, beyond what is saved for sure.
        least_gain: The joules that a trial is to gain.
        price: The price of a second, in watts.
        quantile: How many standard errors of the time of the run its bound is to be kept by.
        sure_seconds: The time that is surely left below the bound if all activities stay at the original setting.
    """

    factor: float
    spare: Array | float
    variance: Array | float
    excess_seconds: float
    following: Stake | None
    aim: int
    gain: float
    least_gain: float
    price: float
    quantile: float
    sure_seconds: float

    def worth(self, curves: Curves, run: RunProgress, visits: Array, settling: float, step_cv: float) -> Array:
        """Return the joules that visits gain beyond their cost, by their number and by their setting.

        The run keeps z standard errors of its time below the bound. A measurement that lowers that error from S to S'
        gains lambda z (S - S'), at most what the best setting would save, and costs what E + lambda t is more there.

        Args:
            curves: The estimated curves of the activity.
            run: Its visits so far, and to come.
            visits: The numbers of visits.
            settling: The visits in which the device settles there and back.
            step_cv: Standard deviation of the duration of one visit over its mean.
        """
        slowdown = curves.mean(np.exp(curves.log_seconds - curves.log_seconds[:, :1]))
        costs = run.original_seconds * slowdown * (np.exp(curves.mean(curves.log_watts)) + self.price)
        ones = np.ones(len(costs))
        errors = np.sqrt(curves.mean(curves.difference_variance(0, ones, 0 * ones)))
        slowest = slowdown * np.exp(errors) - 1
        aim = max(self.aim, 1)
        seconds = run.steps_left * run.original_seconds * float(slowdown[aim])
        others = float(np.max(self.variance))
        now, then = curves.slowdown_variances(aim, step_cv**2 / visits)
        error, errors_then = (np.sqrt(others + seconds**2 * variance) for variance in (now, then))
        gains = np.minimum(self.price * self.quantile * (error - errors_then), self.gain)
        lasting = visits[:, None] + settling / 2
        is_affordable = lasting * run.original_seconds * slowest <= _AFFORDABLE * self.sure_seconds
        return np.asarray(np.where(is_affordable, gains, 0.0) - np.maximum(lasting * (costs - costs[aim]), 0.0))


def cheapest(stakes: Sequence[Stake], demand: Demand) -> tuple[list[int], float]:
    """Return the place of the setting of each activity, at the lowest price of a second at which the bound is kept.

    Where no price keeps it, all are at the original setting.

    Returns:
        The places, and the price, in watts.
    """
    best, rho, best_price = [0] * len(stakes), 0.0, 0.0
    power = sum(float(stake.joules[0]) for stake in stakes) / sum(stake.original_seconds for stake in stakes)

    joules, spare, variance = (
        np.stack([getattr(one, field) for one in stakes]) for field in ("joules", "spare", "variance")
    )
    rows = np.arange(len(stakes))

    def at(log_price: float) -> list[int]:
        price = power * math.exp(log_price)
        return [*(joules - price * (spare - rho * variance)).argmin(axis=1).tolist()]

    def keeps(places: Sequence[int]) -> bool:
        return bool(demand.is_met(*(sum(each[rows, places].tolist()) for each in (spare, variance))))

    for _ in range(_ROUNDS):
        low, high = _LOWEST, _HIGHEST
        if not keeps(at(high)):
            break
        for _ in range(0 if keeps(at(low)) else _BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if keeps(at(middle)) else (middle, high)
        price = low if keeps(at(low)) else high
        found = _improved(stakes, demand, at(price))
        if not keeps(best) or total(stakes, found, "joules") < total(stakes, best, "joules"):
            best, best_price = found, power * math.exp(price)
        rho = demand.variance_price(total(stakes, found, "variance"))
    common = _improved(stakes, demand, [common_place(stakes, demand)] * len(stakes))
    if keeps(common) and total(stakes, common, "joules") < total(stakes, best, "joules"):
        best = common
    return best, best_price


def common_place(stakes: Sequence[Stake], demand: Demand) -> int:
    """Return the best setting for all activities."""
    together = sum(stakes[1:], start=stakes[0])
    return int(np.where(demand.is_met(together.spare, together.variance), together.joules, math.inf).argmin())


def _improved(stakes: Sequence[Stake], demand: Demand, places: list[int]) -> list[int]:
    """Return settings that cost less, one activity after another, if the bound is kept: curves need not be convex."""
    places = list(places)
    for _ in range(_SWEEPS):
        spare, variance = (total(stakes, places, field) for field in ("spare", "variance"))
        for number, stake in enumerate(stakes):
            place = places[number]
            others = spare - float(stake.spare[place]), variance - float(stake.variance[place])
            is_met = demand.is_met(stake.spare + others[0], stake.variance + others[1])
            joules = np.where(is_met, stake.joules, math.inf)
            if joules.min() < joules[place]:
                places[number] = int(joules.argmin())
                spare, variance = (total(stakes, places, field) for field in ("spare", "variance"))
    return places


def total(stakes: Sequence[Stake], places: Sequence[int], field: str) -> float:
    """Return the sum of a quantity of some activities, each at its setting."""
    return sum(float(getattr(stake, field)[place]) for stake, place in zip(stakes, places, strict=True))
