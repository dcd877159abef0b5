"""The adaptive search: about four trials, for any number of settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.kinds import KINDS, Kind
from zeus_core.search._aims import Aim, LeastCost, Prospects, aim_for, best_place
from zeus_core.search._next_trial import most_promising, most_telling
from zeus_core.search._observation import Observation
from zeus_core.search._prior import CurvePrior, read_prior
from zeus_core.search._search import Told, checked_settings, selected_among
from zeus_core.search.belief import LEARNT_MISFIT, Belief, Curves, Knob
from zeus_core.search.objectives import Energy, OptimumSelector, PowerLimitMeasurement, checked_selector
from zeus_core.search.run.run_plan import Prediction
from zeus_core.search.trial import Trial
from zeus_core.validate import checked_number, checked_one_of, checked_whole_number

# The second trial: below the draw, where the limit begins to bind, so that it shows how steeply time rises. Of 0.8,
# 0.82, 0.85 and 0.88, this needed the fewest trials for the same regret (benchmarks/search_replay.py).
_SECOND_OVER_DRAW = 0.85
_SECOND_OVER_CLOCK = 0.85

_SIGNIFICANT = 3.0  # standard errors
_SIGNIFICANT_FRACTION = 0.01  # of time or power; smaller changes are the work's own
_INTERVAL = 1.645  # standard deviations on each side hold 90 %
_MAX_ASKED_CURVES = 24  # for a rule that is not a cost

# Of the original: settings this close to each other are as good as the same; and so close to a trial, a setting between
# trials is known well enough to be chosen. With 0.1 for that, also a neighbour on a grid of 25 W: compared with 0.08,
# the regret of ZeusCost there is 0.27 instead of 0.31 %, after 3.9 trials instead of 4; the 95th percentile of Energy
# is 1.3 instead of 1.0 % (benchmarks/search_replay.py).
_NEAR, _KNOWN_NEAR = 0.05, 0.1

_EXPLORATION = LeastCost(Energy())


class AdaptiveSearch:
    """A `Search` that finishes in about four trials, by what is known of GPUs.

    The first trial is at the original setting. If the mean draw there is below the lowest limit, that one is tried: if
    it changes no power, no limit binds, and the search is over, unless a cost of your own prefers other settings. Work
    in bursts may draw more than a limit above its mean. Otherwise every trial corrects an estimate of time and power at
    all settings, and the next one is where most is to be gained. The search ends if that is too little to matter. Its
    choice was tried; or, for a cost, lies between such settings and within 10 % of the original from one of them. A
    trial that confirms it is given to the search too, and may lead to a safer one. Trials count by their own precision:
    the scatter of the steps, and the uncertainty of the energy.

    It asks the selector what to look for. For one with a bound, such as `EnergyWithin`, that is the least energy among
    the settings that keep the bound with the probability `confidence`; for `Time`, the least energy among the settings
    as fast as the original. `MaxSlowdownConstraint` then chooses the lowest setting that was tried and keeps the bound,
    if it takes no more energy than the original. A cost is minimised, and another rule is asked what it would choose on
    the estimated curves.

    Args:
        settings: The settings. The highest one is the original.
        selector: The rule for the best setting.
        knob: "power limit" if the settings are watts, "clock" if they are MHz.
        confidence: The probability with which a slowdown bound is to be kept, at least 0.5.
        max_trials: The highest number of trials.
        prior: The knowledge of GPUs; the file that ships with the package if None.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        settings: Sequence[int],
        selector: OptimumSelector,
        *,
        knob: Knob = "power limit",
        confidence: float = 0.9,
        max_trials: int = 6,
        prior: CurvePrior | None = None,
    ) -> None:
        self._settings = checked_settings(settings)
        self._selector = checked_selector(selector)
        kinds = {kind.option: kind for kind in KINDS.values() if kind.has_curves}
        self.kind: Kind = kinds[checked_one_of("knob", knob, kinds)]
        """The kind of setting."""
        wanted = "a probability from 0.5 to 0.999, such as 0.9"
        if not self.kind.binds_power and self._selector.needs_max_power:
            raise UsageError(
                f"selector is {selector!r}, and clocks are no power: pass ZeusCost(max_power_watts=...), such as "
                "the original power limit of a GPU"
            )
        self._aim: Aim | None = aim_for(selector, checked_number("confidence", confidence, 0.5, 0.999, wanted))
        self._max_trials = checked_whole_number("max_trials", max_trials, 1)
        known = read_prior() if prior is None else prior
        self._belief = Belief(self._settings, known, self.kind, LEARNT_MISFIT)
        self._told = Told()

    def ask(self) -> int | None:
        """Return the setting to try next; None once no other one promises to gain enough."""
        return self._decision[0]

    def tell(self, trial: Trial) -> None:
        """Take in a trial. A setting outside the range, or a time or energy that is not finite, teaches nothing."""
        self._told.add(trial)
        vars(self).pop("_decision", None)

    @property
    def choice(self) -> int | None:
        """The best setting so far; None to let the selector choose among the trials, if only it can tell."""
        return self._decision[1]

    def prediction(self, setting: int | None = None) -> Prediction | None:
        """Predict what a setting would do; None before the original setting was measured.

        Args:
            setting: The setting; if None, the one that the selector would choose among all, tried or not.

        Raises:
            UsageError: It is none of the settings.
        """
        observations = self._observations()
        if not observations or observations[0].setting != self._settings[0]:
            return None
        curves = self._belief.after(observations)
        if setting is None:
            place = self._expected_place(curves, observations[0])
        else:
            place = self._settings.index(checked_one_of("setting", setting, self._settings))
        return predicted(curves, place)

    def _expected_place(self, curves: Curves, alike: Observation) -> int:
        try:
            prospects = (self._aim or _EXPLORATION).prospects(curves, alike.seconds_stderr)
        except Exception:  # a cost of the user's may raise anything
            prospects = _EXPLORATION.prospects(curves, alike.seconds_stderr)
        return best_place(self._selector, prospects.expected_costs, prospects.keeps)

    @cached_property
    def _decision(self) -> tuple[int | None, int | None]:
        """The next setting, and the choice; computed when somebody asks, as that takes milliseconds."""
        original = self._settings[0]
        if original not in self._told:
            return original, None
        observations = self._observations()
        trials = {one.setting: one for one in observations}
        if original not in trials or len(self._settings) == 1:
            return None, original  # nothing can be compared with it
        known = self._if_unbound(trials)
        if known is not None:
            return known
        curves = self._belief.after(observations)
        tried = [place for place, setting in enumerate(self._settings) if setting in trials]
        following, choice = self._judged(curves, tried, trials[original])
        second = self._second(trials[original])
        if len(tried) == 1 and second not in self._told:
            following = second
        is_spent = sum(setting in self._told for setting in self._settings) >= self._max_trials
        return (None if is_spent else following), choice

    def _observations(self) -> list[Observation]:
        """Return what was observed at each setting, the original first. Trials above it had another original."""
        usable = [trial for trial in self._told.usable() if trial.setting <= self._settings[0]]
        by_setting = groupby(map(Observation.from_trial, usable), lambda one: one.setting)
        return [Observation.combined(list(some)) for _, some in by_setting]

    def _if_unbound(self, trials: Mapping[int, Observation]) -> tuple[int | None, int | None] | None:
        """Return the next setting and the choice if the lowest limit is above the draw; None if limits may bind."""
        original, lowest = trials[self._settings[0]], self._settings[-1]
        if not self.kind.binds_power or original.watts_per_gpu > lowest or self._prefers_settings(original):
            return None
        if lowest not in self._told:
            return lowest, self._settings[0]
        if lowest not in trials:
            return None, self._settings[0]
        trial = trials[lowest]
        loss = math.log(original.watts_per_gpu / trial.watts_per_gpu)
        if loss > _significant(original.watts_stderr, trial.watts_stderr):
            return None  # the work draws more than the limit at times: one that does not bind changes no power
        errors = original.seconds_stderr, trial.seconds_stderr
        is_slower = trial.log_seconds - original.log_seconds > _significant(*errors)
        return None, None if self._aim is None else self._settings[0] if is_slower else lowest

    def _prefers_settings(self, original: Observation) -> bool:
        """Return whether a setting has a cost of its own, so that one that changes nothing is not as good as another.

        Only a cost of the user's may have one.
        """
        if not isinstance(self._aim, LeastCost):
            return False
        seconds = math.exp(original.log_seconds)
        joules = seconds * original.watts_per_gpu * original.gpus
        try:
            return self._aim.depends_on_setting(self._settings, joules, seconds)
        except Exception:  # a cost of the user's may raise anything
            return False

    def _second(self, original: Observation) -> int:
        """Return the setting of the second trial."""
        aimed = _SECOND_OVER_CLOCK * self._settings[0]
        if self.kind.binds_power:
            aimed = _SECOND_OVER_DRAW * min(original.watts_per_gpu, self._settings[0])
        return min(self._settings[1:], key=lambda setting: abs(setting - aimed))

    def _judged(self, curves: Curves, tried: list[int], alike: Observation) -> tuple[int | None, int | None]:
        """Return the next setting, where a trial is expected to be as precise as another one was, and the choice."""
        if self._aim is None:
            return self._asked(curves, tried, alike)
        try:
            prospects = self._aim.prospects(curves, alike.seconds_stderr)
        except Exception:  # a cost of the user's may raise anything; who applies its choice reports it
            return self._explored(curves, tried, alike), None
        known = self._near(tried) if prospects.are_open else tried
        best = min((place for place in known if prospects.keeps[place]), key=prospects.expected_costs.__getitem__)
        may_be_chosen = prospects.keeps & np.isin(np.arange(len(self._settings)), known)
        choice = best_place(self._selector, prospects.expected_costs, may_be_chosen, tried)
        return self._promising(curves, prospects, best, alike), self._settings[choice]

    def _near(self, tried: list[int]) -> list[int]:
        """Return the places of the settings that were tried, and of those between them that are known well enough."""
        return [
            place
            for place, setting in enumerate(self._settings[: max(tried) + 1])
            if any(abs(setting - self._settings[other]) <= _KNOWN_NEAR * self._settings[0] for other in tried)
        ]

    def _promising(self, curves: Curves, prospects: Prospects, best: int, alike: Observation) -> int | None:
        """Return the untried setting where most is to be gained over the best one; None if too little is."""
        untried = [place for place, setting in enumerate(self._settings) if setting not in self._told]
        choose = most_telling if prospects.are_open else most_promising
        place = choose(curves, prospects, best, untried, alike)
        return None if place is None else self._settings[place]

    def _asked(self, curves: Curves, tried: list[int], alike: Observation) -> tuple[int | None, int | None]:
        """Ask a rule that is not a cost what it would choose on the estimated curves."""
        picks = []
        for weight, seconds, watts in zip(
            curves.weights[:_MAX_ASKED_CURVES], np.exp(curves.log_seconds), np.exp(curves.log_watts), strict=False
        ):
            measurements = [
                PowerLimitMeasurement(setting, float(joules), float(duration), float(duration * alike.seconds_stderr))
                for setting, joules, duration in zip(self._settings, seconds * watts, seconds, strict=True)
            ]
            pick = selected_among(self._selector, measurements)
            if pick is None:
                return self._explored(curves, tried, alike), None
            picks.append((pick, float(weight)))
        wanted = _weighted_median(picks)
        is_known = wanted in self._told or any(
            abs(self._settings[place] - wanted) <= _NEAR * self._settings[0] for place in tried[1:]
        )
        return (None if is_known else wanted), None

    def _explored(self, curves: Curves, tried: list[int], alike: Observation) -> int | None:
        """Return where to look for less energy: what a rule that fails on curves may be shown."""
        prospects = _EXPLORATION.prospects(curves, alike.seconds_stderr)
        best = min(tried, key=prospects.expected_costs.__getitem__)
        return self._promising(curves, prospects, best, alike)


def predicted(curves: Curves, place: int) -> Prediction:
    """Predict the saving and the slowdown at the place of a setting."""
    count = len(curves.settings)
    factors = []
    log_joules = curves.log_seconds + curves.log_watts
    for values, watts_exponent in ((log_joules, np.ones(count)), (curves.log_seconds, np.zeros(count))):
        change = values[:, place] - values[:, 0]
        mean = float(curves.weights @ change)
        variance = curves.difference_variance(0, np.ones(count), watts_exponent)[:, place] + (change - mean) ** 2
        reach = _INTERVAL * math.sqrt(float(curves.weights @ variance))
        factors.append(tuple(math.exp(mean + away) for away in (-reach, 0.0, reach)))
    (least, joules, most), (quickest, seconds, slowest) = factors
    return Prediction(curves.settings[place], 1 - joules, (1 - most, 1 - least), seconds, (quickest, slowest))


def _significant(*stderrs: float) -> float:
    return _SIGNIFICANT * math.hypot(*stderrs) + _SIGNIFICANT_FRACTION


def _weighted_median(picks: list[tuple[int, float]]) -> int:
    half, total = sum(weight for _, weight in picks) / 2, 0.0
    for pick, weight in sorted(picks):
        total += weight
        if total >= half:
            return pick
    return picks[-1][0]
