"""Which plan the ranks follow: one by profiles kept from earlier runs, or by those that this training has measured."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from typing import Any

from zeus_core.batches.pytorch._batch_allocation import BatchAllocation
from zeus_core.codec import decode
from zeus_core.errors import UsageError
from zeus_core.mixed.allocation import DeviceProfile, allocate
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
from zeus_core.mixed.allocation.device_profile import keep_profile, kept_profile
from zeus_core.mixed.allocation.trial_windows import trial_splits
from zeus_core.units import duration_text, number_text

_logger = logging.getLogger(__name__)


class PlanChoice:
    """Makes plans for the GPUs of the ranks.

    Args:
        allocation: The goal, and the folder of the profiles.
        models: The GPU model of each rank; None where no GPU can be measured.
        caps: The largest batch that the memory of each rank's GPU holds; None where that is not stated.
    """

    def __init__(self, allocation: BatchAllocation, models: Sequence[str | None], caps: Sequence[int | None]) -> None:
        self._allocation = allocation
        self._models = models
        self._caps = caps

    def trial_splits(self, foreseen: Sequence[int | None] | None = None) -> list[tuple[int, ...]]:
        """Return the splits of a global batch to measure; see `zeus_core.mixed.allocation.trial_windows.trial_splits`.

        Args:
            foreseen: The largest batch of each rank, as far as is known while training; None before.
        """
        return trial_splits(self._allocation.global_batch, self._caps, self._allocation.multiple_of, foreseen)

    def kept(self) -> AllocationPlan | None:
        """Return the plan by the profiles in the folder; None if there is not one of each GPU model."""
        allocation = self._allocation
        if allocation.folder is None:
            return None
        kept = [kept_profile(allocation.folder, str(model), allocation.work) for model in self._models]
        profiles = [profile for profile in kept if profile is not None]
        try:
            return self._plan(profiles, 0.0) if len(profiles) == len(kept) else None
        except UsageError as error:
            _logger.warning("the profiles in %s are of no use, and measured again: %s", allocation.folder, error)
            return None

    def measured(self, reports: Sequence[dict[str, Any]]) -> AllocationPlan:
        """Return the plan by what the ranks have measured, and keep their profiles.

        Args:
            reports: One of each rank.

        Raises:
            UsageError: There is no plan by it.
        """
        profiles = [decode(DeviceProfile, rank["profile"], "the profile") for rank in reports]
        if self._allocation.folder is not None:
            for profile in {profile.gpu_model: profile for profile in profiles}.values():
                keep_profile(profile, self._allocation.folder)
        by_trial = zip(*(rank["windows"] for rank in reports), strict=True)
        rest = [max(w["interval_seconds"] for w in ranks) - max(w["step_seconds"] for w in ranks) for ranks in by_trial]
        return self._plan(profiles, max(0.0, statistics.median(rest)))

    def _plan(self, profiles: Sequence[DeviceProfile], reduce_seconds: float) -> AllocationPlan:
        allocation = self._allocation
        return allocate(
            [profile.options(most) for profile, most in zip(profiles, self._caps, strict=True)],
            allocation.global_batch,
            allocation.objective,
            multiple_of=allocation.multiple_of,
            reduce_seconds=reduce_seconds,
        )


def plan_summary(plan: AllocationPlan) -> str:
    """Return a plan in a sentence, for the log."""
    shares = ", ".join(f"{share.batch} on a {share.device} at {share.setting}" for share in plan.ranks)
    beyond = [str(rank) for rank, share in enumerate(plan.ranks) if share.is_extrapolated]
    note = f"; the batch of rank {', '.join(beyond)} is beyond those measured" if beyond else ""
    expected = f"a step is to take {duration_text(plan.step_seconds)} and {number_text(plan.energy_joules)} J"
    return f"batches of the ranks: {shares}; {expected}{note}"
