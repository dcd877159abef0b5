"""Which micro-batch to probe next. Pure: it knows no device, no source of time and no framework.

The cost of a sample is taken for a + b / size + c * size: b is what every pass costs at any size, c what large
batches cost in memory traffic and padding. Below the sizes that are out of memory this has one minimum, so that

1. the original size comes first: it shows what a smaller cost is worth;
2. while the largest probed size is the best, the next one is in the middle of those above, which halves the sizes that
   may be out of memory with each probe;
3. when a larger size is worse, the next one is nearest to the minimum of the curve through three probes;
4. the search ends when the curve promises less than is worth a probe, after three sizes at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from zeus_core.errors import UsageError
from zeus_core.search import Trial
from zeus_core.search.objectives import Energy, OptimumSelector, PowerLimitMeasurement
from zeus_core.validate import checked_whole_number

# A gain below this share of what is saved already leaves 98 % of it, where the aim is 95 %. Twice this share, and four
# times the next, miss the aim on .4 % of 4,000 random curves; these on .1 %, at a tenth of a probe more ...
_WORTH_OF_SAVING = 0.015
# ... and below this share of the cost, no training that takes less than hours earns what the probe takes.
_WORTH_OF_COST = 0.0005

# Three points are what the curve needs: two of them show a fall, not whether a rise follows.
_MIN_TRIALS = 3
_STEP_DOWN = 4  # in published sweeps with a rise, the best size is 2 to 8 times smaller than the largest


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, in ascending order."""
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})


def micro_batch_sizes(batch_size: int, micro_batch: int) -> list[int]:
    """Return the sizes that divide a batch.

    Raises:
        UsageError: The one in use does not, or an argument is no size.
    """
    batch_size = checked_whole_number("batch_size", batch_size, 1)
    micro_batch = checked_whole_number("micro_batch", micro_batch, 1)
    sizes = divisors(batch_size)
    if micro_batch not in sizes:
        raise UsageError(
            f"micro_batch is {micro_batch}, which does not divide the {batch_size} samples of a step on one rank; "
            f"choose one of {', '.join(map(str, sizes))}"
        )
    return sizes


def indivisible(size: object, batch_size: int) -> str | None:
    """Return, for people, that a size does not divide a batch; None if it does, or is no number."""
    if not isinstance(size, int) or batch_size % size == 0:
        return None
    possible = ", ".join(map(str, divisors(batch_size)))
    return f"{size} does not divide the {batch_size} samples of a step on one rank; try {possible}"


class MicroBatchSearch:
    """Proposes sizes, and receives trials: the `setting` of a trial is the size, its `steps` are samples.

    Args:
        sizes: The sizes there are, in ascending order.
        original: The size that training would use otherwise.
        selector: The rule for the best size. One that is no `Objective` chooses among the trials at the end, and the
            energy guides the search.
    """

    def __init__(self, sizes: Sequence[int], original: int, selector: OptimumSelector) -> None:
        self._sizes = list(sizes)
        self._original = original
        self._selector = selector
        self.trials: dict[int, Trial] = {}
        """The trials, by size."""
        self.out_of_memory: set[int] = set()
        """The sizes that do not fit into memory."""

    def tell(self, trial: Trial) -> None:
        """Take in a trial, whether it was asked for or not."""
        self.trials[trial.setting] = trial

    def tell_out_of_memory(self, size: int) -> None:
        """Take in that a size, and so each larger one, does not fit into memory."""
        self.out_of_memory.add(size)

    def ask(self) -> int | None:
        """Return the size to probe next; None once enough is known."""
        sizes, trials = self._possible(), self._possible_trials()
        if not trials:
            return self._first(sizes)
        best, largest = self._best(trials), max(trials)
        above = [size for size in sizes if size > best]
        if best < largest:
            return self._near(best, sizes, trials)
        if above and self._is_worth_going_up(trials, above[-1]):
            return above[len(above) // 2]
        return self._second_look(sizes, trials) if len(trials) < _MIN_TRIALS else None

    @property
    def choice(self) -> int | None:
        """The best size so far; None if none fits as far as is known."""
        trials = self._possible_trials()
        if not trials:
            return None
        if self._selector.objective is not None:
            return self._best(trials)
        return self._selector.select([PowerLimitMeasurement.from_trial(trials[size], 1) for size in sorted(trials)])

    def cost(self, size: int) -> float:
        """Return the cost of a sample at a size that has a trial."""
        rule = self._selector.objective or Energy()
        baseline = self.trials.get(self._original) or self.trials[max(self.trials)]
        one, original = (PowerLimitMeasurement.from_trial(trial, 1) for trial in (self.trials[size], baseline))
        return rule.cost(one, original)

    def _possible(self) -> list[int]:
        smallest = min(self.out_of_memory, default=math.inf)
        return [size for size in self._sizes if size < smallest]

    def _possible_trials(self) -> dict[int, Trial]:
        possible = set(self._possible())
        return {size: trial for size, trial in self.trials.items() if size in possible}

    def _first(self, sizes: Sequence[int]) -> int | None:
        if self._original in sizes:
            return self._original
        return sizes[len(sizes) // 2] if sizes else None

    def _best(self, trials: dict[int, Trial]) -> int:
        return min(trials, key=lambda size: (self.cost(size), size))

    def _is_worth_going_up(self, trials: dict[int, Trial], top: int) -> bool:
        """Return whether a + b / size through the two largest probes promises enough at the largest size left."""
        if len(trials) < 2:
            return True
        lower, best = sorted(trials)[-2:]
        slope = (self.cost(lower) - self.cost(best)) / (1 / lower - 1 / best)
        return self._is_worth(slope * (1 / best - 1 / top), best)

    def _second_look(self, sizes: Sequence[int], trials: dict[int, Trial]) -> int | None:
        """Return a size below the largest one, where a minimum may hide."""
        lower, best = [0, *sorted(trials)][-2:]
        between = [size for size in sizes if lower < size < best]
        wanted = math.sqrt(lower * best) if lower else best / _STEP_DOWN
        return min(between, key=lambda size: _distance(size, wanted), default=None)

    def _near(self, best: int, sizes: Sequence[int], trials: dict[int, Trial]) -> int | None:
        """Return the size to probe between the neighbours of the best one; a larger one was worse."""
        lower = max((size for size in trials if size < best), default=None)
        upper = min(size for size in trials if size > best)
        if lower is None and sizes[0] < best:  # the mirror image of the larger one
            return min((size for size in sizes if size < best), key=lambda size: _distance(size, best * best / upper))
        between = [size for size in sizes if (lower or 0) < size < upper and size != best]
        if not between:
            return None
        if lower is None:
            return between[len(between) // 2]
        place, cost = _minimum(*((size, self.cost(size)) for size in (lower, best, upper)))
        nearest = min(between, key=lambda size: _distance(size, place))
        return nearest if self._is_worth(self.cost(best) - cost, best) else None

    def _is_worth(self, gain: float, best: int) -> bool:
        cost, start = self.cost(best), self.cost(self._original) if self._original in self.trials else math.inf
        saved = start - cost if math.isfinite(start) else 0.0
        return gain > max(_WORTH_OF_SAVING * (saved + max(gain, 0.0)), _WORTH_OF_COST * cost)


def _distance(first: float, second: float) -> float:
    return abs(math.log(first / second))


def _minimum(*points: tuple[int, float]) -> tuple[float, float]:
    """Return where a + b / size + c * size through three points, the middle one the lowest, is least, and its value."""
    (x1, y1), (x2, y2), (x3, y3) = points
    u12, u23 = 1 / x1 - 1 / x2, 1 / x2 - 1 / x3
    determinant = u12 * (x2 - x3) - u23 * (x1 - x2)
    b = ((y1 - y2) * (x2 - x3) - (y2 - y3) * (x1 - x2)) / determinant
    c = (u12 * (y2 - y3) - u23 * (y1 - y2)) / determinant
    if not (b > 0 and c > 0 and math.isfinite(b / c)):
        return float(x2), y2
    a = y2 - b / x2 - c * x2
    place = min(max(math.sqrt(b / c), x1), x3)
    return place, a + b / place + c * place
