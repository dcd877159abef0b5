"""Batches chosen while training starts, from what each rank measures.

A training warms up on equal batches. Then all ranks agree on how long to measure, and go through the same trials. At
the end they agree on a plan, or try again what something else got into, and follow the plan from the first global batch
that no rank has begun to load.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch

from zeus_core.batches.pytorch._batch_allocation import BatchAllocation
from zeus_core.batches.pytorch._plan_choice import PlanChoice, plan_summary
from zeus_core.batches.pytorch._trial_limits import SETTLING_STEPS, LimitTrial, TrialSchedule, TriedLimits, trials_of
from zeus_core.batches.pytorch._trial_measurements import TrialMeasurements
from zeus_core.batches.pytorch.uneven_sampler import UnevenBatchSampler
from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
from zeus_core.mixed.allocation.trial_windows import profile_of_windows
from zeus_core.ports import World
from zeus_core.ports.exchange import Exchange

# The first steps of a training are slow: memory is allocated, and kernels are chosen or compiled.
_WARM_UP_STEPS = 5
# A counter is updated each 0.1 s, and the energy between an update and the edge of a window is not known: on simulated
# GPUs the energy of windows of 1.6 s was up to 11 % off, and that of windows of 5 s up to 1 %.
_MIN_WINDOW_SECONDS = 5.0
_MAX_ROUNDS = 3  # of trials, if something else than steps got into some

_logger = logging.getLogger(__name__)


class AllocationRun:
    """Carries out a `BatchAllocation` on one rank.

    Making one is a collective call, and so are two of those of `on_batch`: the one that ends warming up, and the one
    after the last trial.

    Args:
        allocation: The same on all ranks, but for the monitor and `max_batch`.
        world: The ranks.
        check: Raises what else is wrong on this rank.

    Raises:
        UsageError: The ranks cannot be measured, or have different arguments.
        WorldError: An argument is wrong on another rank, or a rank did not answer in time.
    """

    def __init__(self, allocation: BatchAllocation, world: World, check: Callable[[], None]) -> None:
        self._allocation = allocation
        self._exchange = Exchange(world)
        reports = self._exchange.gather(lambda: _report_of(allocation, check))
        if any(rank["same"] != reports[0]["same"] for rank in reports):
            raise UsageError(
                "the ranks have different arguments for BatchAllocation; all but max_batch must be the same"
            )
        self._caps = [rank["max_batch"] for rank in reports]
        models = [rank["gpu_model"] for rank in reports]
        self._plans = PlanChoice(allocation, models, self._caps)
        splits = self._plans.trial_splits()
        self.batches: tuple[int, ...] = splits[0]
        """The batches to begin with, and then those of the plan."""
        self._limits: TriedLimits | None = None
        self._trials: list[LimitTrial] = []
        self._measured: TrialMeasurements | None = None  # None if there is nothing to measure any more
        self._schedule: TrialSchedule | None = None  # None while training warms up
        self._rounds = 0
        self._first = 0  # global batch of this epoch that is trained on
        self._begins: list[float] = []  # of steps, while training warms up
        self._sampler: UnevenBatchSampler | None = None
        self._begin(splits, all(models))

    def _begin(self, splits: Sequence[tuple[int, ...]], are_measured: bool) -> None:
        allocation, ranks = self._allocation, self._exchange.size
        if ranks == 1:
            return
        if not are_measured:
            _logger.warning("no GPU can be measured on a rank of this job: all ranks get equal batches")
            return
        (gpu,) = allocation.monitor.gpus.values()
        self._limits = TriedLimits(gpu, allocation.limit_fractions)
        plan = self._exchange.decide(lambda: encode(self._plans.kept()))
        if plan is not None:
            self._follow(decode(AllocationPlan, plan, "the plan"))
        elif len(splits) == 1:
            _logger.warning(
                "the global batch has %d samples, too few to measure two batch sizes on each of %d ranks: "
                "all ranks get equal batches",
                allocation.global_batch,
                ranks,
            )
        else:
            self._trials = trials_of(self._limits.settings, splits)
            self._measured = TrialMeasurements(allocation.monitor, self._limits, self._exchange.rank)

    def watch(self, model: torch.nn.Module) -> None:
        """See when this rank has computed the gradients of a model; to be called before it is trained."""
        if self._measured is not None and not self._measured.is_watching:
            self._measured.watch(model)

    def use_sampler(self, sampler: UnevenBatchSampler) -> None:
        """Try batch sizes on the samples of a loader; not if an epoch is too short for one."""
        self._sampler = sampler
        least = SETTLING_STEPS + self._allocation.steps
        if self._measured is not None and len(sampler) <= _WARM_UP_STEPS + least:
            _logger.warning(
                "an epoch has %d steps, too few to measure a batch size: all ranks get equal batches", len(sampler)
            )
            self.close()
        elif self._measured is not None:
            sampler.lay_out = self._begin_epoch

    def _begin_epoch(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the splits that are left to try."""
        if self._measured is None:
            return []
        self._measured.cancel()
        assert self._sampler is not None
        self._first, self._begins = self._sampler.first_trained, []
        return [] if self._schedule is None else self._laid_out(self._schedule, self._first)

    def _laid_out(self, schedule: TrialSchedule, first: int) -> list[tuple[int, tuple[int, ...]]]:
        return [*schedule.lay_out(first), (schedule.end, self.batches)]

    def on_batch(self, number: int, sizes: Sequence[int]) -> None:
        """Begin to train on a global batch. Never raises."""
        measured, schedule = self._measured, self._schedule
        if measured is None:
            return
        if schedule is None:
            self._begins.append(self._allocation.monitor.time_source.now())
            self._attempt(measured.memory.begin_step)
            if number == self._first + _WARM_UP_STEPS:
                self._together(self._begin_trials)
            return
        has_ended = schedule.passes(number)
        self._attempt(lambda: measured.on_batch(schedule, number, sizes, has_ended))
        if has_ended and schedule.is_over:
            self._together(self._conclude)

    def _attempt(self, act: Callable[[], object]) -> None:
        with suppress(Exception):  # the next exchange says which
            self._exchange.attempt(act)

    def _together(self, act: Callable[[UnevenBatchSampler], None]) -> None:
        """Do what all ranks do, or go back to equal batches on all."""
        assert self._sampler is not None
        try:
            act(self._sampler)
        except Exception as error:
            self.close()
            _logger.warning("the batches could not be measured, and all ranks get equal ones: %s", error)

    def _begin_trials(self, sampler: UnevenBatchSampler) -> None:
        """Agree on the length of all trials, and lay them out from the first global batch that no rank has loaded."""
        seconds = min(after - before for before, after in itertools.pairwise(self._begins))
        reports = self._exchange.gather(lambda: (seconds, sampler.drawn, self._foreseen_batch()))
        self._try_what_fits([foreseen for *_, foreseen in reports])
        slowest = max(rank_seconds for rank_seconds, *_ in reports)
        steps = math.ceil(_MIN_WINDOW_SECONDS / slowest) if slowest > 0.0 else self._allocation.steps
        room = len(sampler) - 1 - SETTLING_STEPS
        length = SETTLING_STEPS + max(self._allocation.steps, min(steps, room))
        self._lay_out(TrialSchedule(self._trials, length), sampler, max(drawn for _, drawn, _ in reports))

    def _foreseen_batch(self) -> int | None:
        """Return the largest batch that the memory of this rank holds, as far as is known; None if not."""
        assert self._measured is not None
        is_stated = self._caps[self._exchange.rank] is not None
        return None if is_stated else self._measured.memory.largest_batch(self.batches[self._exchange.rank])

    def _try_what_fits(self, foreseen: Sequence[int | None]) -> None:
        """Choose what to try by the memory of all ranks, which is known now."""
        assert self._limits is not None
        splits = self._plans.trial_splits(foreseen)
        for rank, sizes in enumerate(zip(*splits, strict=True)):
            if len(set(sizes)) == 1 and foreseen != [None] * len(foreseen):
                full = min((most, other) for other, most in enumerate(foreseen) if most is not None)
                raise UsageError(
                    f"rank {rank} can be measured with batches of {sizes[0]} samples alone, as the memory of rank "
                    f"{full[1]} holds {full[0]} samples"
                )
        self._trials = trials_of(self._limits.settings, splits)

    def _lay_out(self, schedule: TrialSchedule, sampler: UnevenBatchSampler, first: int) -> None:
        self._schedule = schedule
        for begin, split in self._laid_out(schedule, first):
            sampler.use(split, begin)

    def _conclude(self, sampler: UnevenBatchSampler) -> None:
        """Agree on a plan, and follow it from the first global batch that no rank has begun to load."""
        reports = self._exchange.gather_first(lambda: self._report(sampler)) or []
        self._rounds += 1
        decided = self._exchange.decide(lambda: self._decided(reports))
        drawn, disturbed = decided["drawn"], decided["disturbed"]
        if disturbed and self._schedule is not None:
            again = [trial for trial in self._trials if trial.number in disturbed]
            self._lay_out(TrialSchedule(again, self._schedule.length), sampler, drawn)
            return
        plan = decode(AllocationPlan, decided["plan"], "the plan")
        self._stop()
        self._follow(plan)
        sampler.use(plan.batches, drawn)
        if self._exchange.rank == 0:
            _logger.warning("%s", plan_summary(plan))

    def _report(self, sampler: UnevenBatchSampler) -> dict[str, Any]:
        assert self._measured is not None
        gpu_model = next(iter(self._allocation.monitor.gpus.values())).name
        windows = self._measured.windows
        self._allocation.profile = profile_of_windows(gpu_model, windows, self._allocation.work)
        return {
            "profile": encode(self._allocation.profile),
            "windows": [asdict(window) for window in windows if not window.is_blocked],
            "disturbed": self._measured.disturbed(self._trials),
            "drawn": sampler.drawn,
        }

    def _decided(self, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return what rank 0 decides: the trials to be done again, or the plan."""
        drawn = max(rank["drawn"] for rank in reports)
        disturbed = set.intersection(*(set(rank["disturbed"]) for rank in reports))
        if not disturbed:
            return {"drawn": drawn, "disturbed": [], "plan": encode(self._plans.measured(reports))}
        if self._rounds < _MAX_ROUNDS and self._schedule is not None:
            return {"drawn": drawn, "disturbed": sorted(disturbed), "plan": None}
        raise UsageError("something else than training steps, such as evaluations, was in all that was measured")

    def _follow(self, plan: AllocationPlan) -> None:
        self._allocation.plan = plan
        self.batches = plan.batches
        limits, setting = self._limits, plan.ranks[self._exchange.rank].setting
        if limits is not None:
            self._exchange.attempt(lambda: limits.apply(setting))

    def _stop(self) -> None:
        if self._measured is not None:
            self._measured.stop()
        self._measured = None

    def close(self) -> None:
        """Measure nothing more, and restore the original limit."""
        self._stop()
        if self._limits is not None:
            self._limits.restore()


def _report_of(allocation: BatchAllocation, check: Callable[[], None]) -> dict[str, Any]:
    """Return what this rank reports to the others."""
    check()
    if len(allocation.monitor.gpus) > 1:
        raise UsageError("monitor measures several GPUs; it must measure that of this rank: gpu_indices=[local_rank]")
    same = [allocation.global_batch, allocation.multiple_of, allocation.limit_fractions, allocation.steps]
    return {
        "same": [*same, allocation.work, repr(allocation.objective)],
        "max_batch": allocation.max_batch,
        "gpu_model": next((gpu.name for gpu in allocation.monitor.gpus.values()), None),
    }
