"""Measuring GPUs while they train together: which splits to try, and what they say of each GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation._fit import MeasuredBatch
from zeus_core.mixed.allocation.device_profile import DeviceProfile

# Every other rank gets three times the samples of its neighbours, and then the reverse: two sizes far apart for a line,
# and a third that shows whether it is one. Larger ones would need more memory than people leave free, unless they say
# how much there is: then five times, so that a GPU twice as quick as the mean of all gets what suits it.
_TIMES, _TIMES_IN_KNOWN_MEMORY = 3, 5
# A share of further waiting below which its power is lost in the errors of energy counters.
_MIN_WAITING_FRACTION = 0.05


# How much longer a window may be than its steps at their usual time. A window of 5 s may hold another second.
_MAX_STRETCH = 1.2


@dataclass(frozen=True)
class MeasuredWindow:
    """Some steps of one rank, all with one batch at one setting.

    Attributes:
        setting: Watts of the power limit.
        batch: Samples of the rank in each step.
        steps: How many there are.
        step_seconds: How long the rank computed in a step: the median.
        interval_seconds: From the beginning of a step to that of the next, waiting for others included: the median.
        busy_seconds: How long it computed in all.
        seconds: How long the steps took in all.
        joules: Energy of the GPU over them.
        is_blocked: Whether others kept this rank waiting on purpose.
    """

    setting: int
    batch: int
    steps: int
    step_seconds: float
    interval_seconds: float
    busy_seconds: float
    seconds: float
    joules: float
    is_blocked: bool = False

    @property
    def is_disturbed(self) -> bool:
        """Whether something else than steps took a part of the time, such as an evaluation."""
        return self.seconds > _MAX_STRETCH * self.steps * self.interval_seconds


def profile_of_windows(gpu_model: str, windows: Sequence[MeasuredWindow], work: str) -> DeviceProfile:
    """Return the profile of a GPU from its windows.

    The power while it waits for others is what a window in which it was kept waiting takes more than one without, for
    each second that it lasts longer. Without such a window, it is assumed to be the lowest power of any window.

    Raises:
        UsageError: They say too little, such as one batch size alone.
    """
    blocking = min(window.joules / window.seconds for window in windows)
    for window in (window for window in windows if window.is_blocked):
        alike = [
            other
            for other in windows
            if not other.is_blocked and (other.setting, other.batch) == (window.setting, window.batch)
        ]
        longer = window.seconds - alike[0].seconds if alike else 0.0
        if longer > _MIN_WAITING_FRACTION * window.seconds:
            blocking = min(blocking, max(0.0, (window.joules - alike[0].joules) / longer))
    points = [
        MeasuredBatch(
            window.setting,
            window.batch,
            window.step_seconds,
            max(1e-3, (window.joules - blocking * (window.seconds - window.busy_seconds)) / window.busy_seconds),
        )
        for window in windows
        if not window.is_blocked
    ]
    return DeviceProfile(gpu_model, tuple(points), blocking, work)


def trial_splits(
    global_batch: int,
    max_batches: Sequence[int | None],
    multiple_of: int,
    foreseen: Sequence[int | None] | None = None,
) -> list[tuple[int, ...]]:
    """Return splits of a global batch to try: the equal one, and two that give each rank other batch sizes.

    Args:
        global_batch: Samples of all ranks.
        max_batches: The most that the memory of each rank holds; any batch if None.
        multiple_of: Each batch is a multiple of this number, as the global batch is.
        foreseen: The most that the memory of each rank is foreseen to hold; None where that is not known.

    Returns:
        The equal split alone if the global batch is too small for two sizes on each rank.

    Raises:
        UsageError: The ranks cannot hold the global batch.
    """
    units = global_batch // multiple_of
    caps = [units if most is None else most // multiple_of for most in max_batches]
    if foreseen is not None:
        fitting = [units if most is None else most // multiple_of for most in foreseen]
        caps = [min(pair) for pair in zip(caps, fitting, strict=True)]
    if sum(caps) < units:
        held = sum(caps) * multiple_of
        raise UsageError(f"the global batch has {global_batch} samples, and the ranks hold {held} at most")
    ranks = len(caps)
    times = _TIMES if None in max_batches else _TIMES_IN_KNOWN_MEMORY
    pairs = ((1, 1), (times, 1), (1, times))[: 1 if units < 2 * ranks else 3]
    weights = [[pair[rank % 2] for rank in range(ranks)] for pair in pairs]
    splits = [_capped_split(units, row, caps) for row in weights]
    return [tuple(share * multiple_of for share in split) for split in splits]


def _capped_split(samples: int, weights: Sequence[int], caps: Sequence[int]) -> tuple[int, ...]:
    """Split samples by weights; what is above a cap goes to the other ranks."""
    full: set[int] = set()
    while True:
        free = [0 if rank in full else weight for rank, weight in enumerate(weights)]
        rest = samples - sum(caps[rank] for rank in full)
        shares = split_in_proportion(rest, free) if any(free) else (0,) * len(caps)
        over = {rank for rank, share in enumerate(shares) if share > caps[rank]}
        if not over:
            return tuple(caps[rank] if rank in full else share for rank, share in enumerate(shares))
        full |= over


def split_in_proportion(samples: int, parts: Sequence[float]) -> tuple[int, ...]:
    """Split samples in the proportion of some numbers, each share less than one sample off."""
    total = sum(parts)
    shares = [int(samples * part // total) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda place: (-(samples * parts[place] % total), place))
    for place in by_remainder[: samples - sum(shares)]:
        shares[place] += 1
    return tuple(shares)
