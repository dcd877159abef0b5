"""Watches of iterations while plans are followed: delays, other work, stragglers. Pure.

**Delays.** Is the plan at fault, or the machine?

- An iteration is too slow if it takes longer than the user allows, and longer than a pipeline waits for regardless.
- After a slow one, iterations at the original clocks show the reason. If they are as slow, the machine is slower: the
  plan is made again for it.
- A plan that has been fast enough before is given a few more chances: the delay may be transient.
- Otherwise the plan is at fault. The next one has less time; after several of these there is no further plan.
- A plan that has been fast enough for long clears the record of earlier ones.

**Other work**, such as that of longer sequences, takes another time than before on all ranks.

**Stragglers.** All times are those of the work of an iteration, up to its last computation. The slowdown of a pipeline
is its measured time over that of its plan. Its usual plan, slowed by the same factor, gives the time it takes if it
waits for nobody; the longest of these, over all pipelines, is the time the others wait for regardless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from statistics import median
from typing import NamedTuple

# Plans that may be too slow before there is no further one. Each costs `check_steps` slow iterations; a plan is scaled
# by its measured excess, so that the second one is close, and a third leaves room for noise.
_MAX_SLOW_PLANS = 3

# Delays in a row that a plan is forgiven if it was fast enough before. More of them keep a plan that has become too
# slow for longer; fewer replace a good one for two stalls of the machine in a row.
_MAX_FORGIVEN_DELAYS = 4

# Comparisons a plan must pass to clear the record of earlier slow plans: more than a plan passes by luck.
_CLEARING_WINDOWS = 5

# Comparisons whose median is taken as the usual time of an iteration: a stall in two of them does not move it.
_USUAL_WINDOWS = 5


class DelayVerdict(Enum):
    """The reason of a delay."""

    MACHINE = "the machine is slower, the plan is not at fault"
    TRANSIENT = "the plan was fast enough before"
    PLAN = "the plan is too slow"
    EVERY_PLAN = "no plan is fast enough"


class DelayWatch:
    """Detects slow iterations, and judges them.

    Args:
        slowdown_factor: The longest allowed iteration, as a multiple of that at the original clocks.
        tolerance_fraction: Excess over the allowed time that is no delay yet.
    """

    def __init__(self, slowdown_factor: float, tolerance_fraction: float) -> None:
        self._slowdown_factor = slowdown_factor
        self._tolerance_factor = 1 + tolerance_fraction
        self._slow_plans = 0
        self._forgiven_delays_left = 0
        self._good_windows = 0
        self._usual_seconds: deque[float] = deque(maxlen=_USUAL_WINDOWS)
        self.time_budget_factor = 1.0
        """The longest iteration to plan for, as a multiple of the allowed time."""
        self.delayed_seconds = 0.0
        """The time of the latest iteration that was too slow."""

    def begin_planning(self) -> None:
        """Note that new plans are made: they have not been fast enough yet."""
        self._forgiven_delays_left = 0

    def begin_replaying(self) -> None:
        """Note that plans are followed from now on."""
        self._good_windows = 0
        self.change_plans()

    def change_plans(self) -> None:
        """Note that other plans are followed: iterations take another time."""
        self._usual_seconds.clear()

    def is_too_slow(
        self, measured_seconds: float, baseline_seconds: float, waiting_seconds: Sequence[float] = ()
    ) -> bool:
        """Compare the time of an iteration with what is allowed.

        Args:
            measured_seconds: The iteration.
            baseline_seconds: An iteration at the original clocks.
            waiting_seconds: Predictions for the pipelines that wait for something slower regardless.
        """
        reference_seconds = baseline_seconds
        if self._usual_seconds:
            # No plan is faster than the original clocks: a baseline slower than a plan was slowed by something else.
            reference_seconds = min(reference_seconds, median(self._usual_seconds))
        longest_seconds = max([self._slowdown_factor * reference_seconds, *waiting_seconds])
        if measured_seconds > self._tolerance_factor * longest_seconds:
            self.delayed_seconds = measured_seconds
            return True
        self._good_windows += 1
        self._usual_seconds.append(measured_seconds)
        return False

    def note_delay(self, measured_seconds: float) -> None:
        """Note an iteration that is to be judged, for another reason than its time."""
        self.delayed_seconds = measured_seconds

    def judge(self, baseline_seconds: float) -> DelayVerdict:
        """Judge the latest delay.

        Args:
            baseline_seconds: An iteration at the original clocks, measured after the delay.
        """
        if self._good_windows > 0:
            self._forgiven_delays_left = _MAX_FORGIVEN_DELAYS
        if self._good_windows >= _CLEARING_WINDOWS:
            self._slow_plans, self.time_budget_factor = 0, 1.0
        allowed_seconds = self._slowdown_factor * baseline_seconds
        if self.delayed_seconds <= self._tolerance_factor * allowed_seconds:
            return DelayVerdict.MACHINE
        if self._forgiven_delays_left > 0:
            self._forgiven_delays_left -= 1
            return DelayVerdict.TRANSIENT
        self._slow_plans += 1
        self.time_budget_factor *= allowed_seconds / self.delayed_seconds
        return DelayVerdict.EVERY_PLAN if self._slow_plans == _MAX_SLOW_PLANS else DelayVerdict.PLAN


# Iterations in a row that must show the change: a stall of the machine in one or two of them is none.
_PATIENCE_STEPS = 3

# Iterations before them whose median is taken as the usual time.
_USUAL_STEPS = 12

# Factor between the times from which on the work is taken for another one; machines slow down by less, which the
# comparisons every `check_steps` notice.
_MIN_CHANGE_FACTOR = 1.2


class WorkWatch:
    """The time that the computations of one rank take in an iteration, compared with earlier iterations."""

    def __init__(self) -> None:
        self._usual_seconds: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._recent_seconds: deque[float] = deque(maxlen=_PATIENCE_STEPS)

    def add(self, seconds: float) -> None:
        """Add an iteration."""
        if len(self._recent_seconds) == _PATIENCE_STEPS:
            self._usual_seconds.append(self._recent_seconds[0])
        self._recent_seconds.append(seconds)

    @property
    def change_factor(self) -> float:
        """By what factor all of the recent iterations differ from the usual ones at least; 1.0 if that is not known."""
        usual_seconds = median(self._usual_seconds or [0.0])
        if usual_seconds <= 0:
            return 1.0
        shortest, longest = min(self._recent_seconds), max(self._recent_seconds)
        return shortest / usual_seconds if shortest > usual_seconds else min(longest / usual_seconds, 1.0)


def is_other_work(change_factors: Sequence[float]) -> bool:
    """Return whether the work has changed on all ranks; on some of them only, these have become slower or faster."""
    return min(change_factors) >= _MIN_CHANGE_FACTOR or max(change_factors) <= 1 / _MIN_CHANGE_FACTOR


# Exchanges in a row that must show a wait before it is used: a stall of the machine in one or two of them slows nobody
# down. Larger values leave the energy of a wait unused for longer.
_PATIENCE_EXCHANGES = 3

# Fraction by which a pipeline must be faster than planned to count as recovered from a slow profile; iterations scatter
# by less.
_MIN_SPEEDUP_FRACTION = 0.02

MIN_WAIT_FRACTION = 0.015
"""The fraction of an iteration below which a wait is not worth another plan: it would save about as little energy, and
times scatter by as much."""


class Announcement(NamedTuple):
    """Time of an iteration elsewhere, as announced by the user on a rank; the greatest of several counts.

    Attributes:
        number: Count of the announcements that the rank knows of.
        rank: The rank.
        time_seconds: The time; None if there is nothing to wait for.
    """

    number: int = 0
    rank: int = 0
    time_seconds: float | None = None


class AnnouncementBoard:
    """The latest announcement that a rank knows of."""

    def __init__(self) -> None:
        self.latest = Announcement()

    def announce(self, rank: int, time_seconds: float | None) -> None:
        """Replace all announcements known so far by one of this rank."""
        self.latest = Announcement(self.latest.number + 1, rank, time_seconds)

    def learn(self, announcement: Announcement) -> None:
        """Take over an announcement of another rank, unless a newer one is known."""
        self.latest = max(self.latest, announcement)


class PipelineTimes(NamedTuple):
    """Times of an iteration of one pipeline.

    Attributes:
        measured_seconds: From its beginning to its last computation.
        planned_seconds: The same by the plan in force.
        usual_seconds: The same by the usual plan, which waits for nobody.
    """

    measured_seconds: float
    planned_seconds: float
    usual_seconds: float

    @property
    def slowdown_factor(self) -> float:
        """The slowdown of the pipeline by something outside its plan."""
        return self.measured_seconds / self.planned_seconds


class StragglerWatch:
    """Decides how long the iterations of each pipeline may take, in the time of its own plans.

    Extra time is granted after three exchanges in a row that would have allowed it, and withdrawn at the first that
    does not. It is expected after two, so that the plans for it can be made by the third. The pipelines exchange their
    times in each iteration, or every half second where iterations are shorter (at the latest after `check_steps`).
    """

    def __init__(self) -> None:
        self._longest: deque[float] = deque(maxlen=_PATIENCE_EXCHANGES)
        self._factors: deque[list[float]] = deque(maxlen=_PATIENCE_EXCHANGES)  # of each pipeline
        self.expected_seconds: list[float] = []
        """How long each pipeline may take after the next exchange if that is like the latest two."""

    def allow(self, pipelines: Sequence[PipelineTimes], announced_seconds: float | None = None) -> list[float]:
        """Return how long each pipeline may take from now on, in seconds.

        Args:
            pipelines: Times of the latest iteration of each.
            announced_seconds: How long the work takes elsewhere, as announced by the user; granted at once. None if
                nothing was announced.
        """
        self._factors.append([times.slowdown_factor for times in pipelines])
        factors = [self._factor(pipeline) for pipeline in range(len(pipelines))]
        usual = [times.usual_seconds * factor for times, factor in zip(pipelines, factors, strict=True)]
        self._longest.append(max(usual))

        def allowed(exchanges: int) -> list[float]:
            recent = list(self._longest)[-exchanges:]
            longest = max(min(recent) if len(recent) == exchanges else 0.0, announced_seconds or 0.0)
            return [
                times.usual_seconds if longest <= (1 + MIN_WAIT_FRACTION) * own else longest / factor
                for times, own, factor in zip(pipelines, usual, factors, strict=True)
            ]

        self.expected_seconds = allowed(_PATIENCE_EXCHANGES - 1)
        return allowed(_PATIENCE_EXCHANGES)

    def _factor(self, pipeline: int) -> float:
        """Return the slowdown of a pipeline; below 1 if it has recovered from one that its profile was measured in."""
        recent = [factors[pipeline] for factors in self._factors]
        has_recovered = len(recent) == _PATIENCE_EXCHANGES and max(recent) < 1 - _MIN_SPEEDUP_FRACTION
        return recent[-1] if has_recovered else max(recent[-1], 1.0)
