"""The levelling of one training: what the ranks exchange, and what is set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zeus_core.device.gpu import uuid_in_job
from zeus_core.errors import DeviceError, UsageError
from zeus_core.kinds import Kind
from zeus_core.mixed.levelling._hold import CommonLevel, Hold
from zeus_core.mixed.levelling._rank_times import OwnWork
from zeus_core.mixed.levelling._waiting_joules import WaitObserver
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.clock_sampler import ClockSampler
from zeus_core.ports.exchange import Exchange
from zeus_core.settings.holders import KnobUser

# The ranks exchange the times of their steps as often as takes at most this share of the time of training. Over gloo an
# exchange takes 0.2 to 1 ms, so that steps of 0.5 s are exchanged one by one.
_EXCHANGE_FRACTION = 0.002
_MAX_STEPS_APART = 64
_COMPARED_STEPS = 8  # at the original settings, before the first change


class LevelledTraining:
    """The levelling of one training, or of the part of it at one common level. Made by all ranks at the same time.

    Args:
        monitor: The monitor of the one GPU of this rank.
        kind: The kind of setting.
        budget_watts: The sum of all limits; None for none.
        level: The level of a search; None without one.
        observes: Whether nothing is set.
        exchange: The exchanges with the other ranks.
        on_denial: Called with the reason for which nothing is set.
        user: The object that the settings are for.

    Raises:
        WorldError: Another rank cannot take part; the message says why.
        DeviceError: This one cannot.
        UsageError: The ranks differ in their arguments, or share a GPU.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        kind: Kind,
        budget_watts: float | None,
        level: CommonLevel | None,
        observes: bool,
        exchange: Exchange,
        on_denial: Callable[[str], object],
        user: KnobUser,
    ) -> None:
        from zeus_core.mixed.levelling._leveller import Leveller  # needs numpy

        self._exchange = exchange
        self._time_source = monitor.time_source
        self._kind = kind
        gpus = list(monitor.gpus.values())
        self._hold = exchange.make(lambda: Hold(gpus, kind, level, user))
        self._sampler = ClockSampler(gpus, monitor.time_source) if kind.locks_sm_clock else None
        about = {**kind.arguments, "budget_watts": budget_watts, "observes": observes}
        ranks = exchange.gather(lambda: [self._hold.settings, uuid_in_job(gpus[0]), about])
        settings, uuids, abouts = zip(*ranks, strict=True)
        _check_ranks(uuids, abouts)
        _check_budget(settings, budget_watts)
        self._leveller = Leveller(settings, self._sampler is None, budget_watts)  # goes on, on rank 0
        self.settings: list[int] = self._leveller.settings
        """The setting of each rank."""
        self.changes: int = 0
        """How often they have changed."""
        self._monitor = monitor
        self._observation: WaitObserver | None = None
        self._steps: list[OwnWork | None] = []
        self._steps_apart = self._proposed_steps_apart = 1
        self._exchange_seconds = math.inf
        self._began = self._time_source.now()
        self._before: list[float] = []  # the share of a step that ranks wait, at the original settings
        self._waiting = 0.0
        denial = "it is only observed" if observes else self._try_first_settings()
        if denial is not None:
            self._hold.release()
            clocks_mhz = () if self._sampler is None else self._hold.settings
            self._observation = WaitObserver(monitor, clocks_mhz, denial)
            if not observes:
                on_denial(denial)
        if self._sampler is not None:
            self._sampler.start()

    @property
    def observes(self) -> bool:
        """Whether nothing is set."""
        return self._observation is not None

    def add_step(self, work: OwnWork | None) -> bool:
        """Add a step; None for one that is not counted. Returns whether the ranks have exchanged their times."""
        self._steps.append(work)
        if len(self._steps) <= self._steps_apart:  # the device may still be at work at the latest one
            return False
        ended, self._steps = self._steps[:-1], self._steps[-1:]
        before = self._time_source.now()
        own = self._report(ended)
        ranks = self._exchange.gather_first(lambda: own) or []
        decided = self._exchange.decide(lambda: self._decide(ranks))
        self._steps_apart = decided["steps_apart"]
        for step, longest, waiting in decided["steps"]:
            self._note_waiting(waiting)
            if self._observation is not None:
                self._observation.add_step(own["seconds"][step], longest)
        if decided["settings"] is not None:
            self.settings, self.changes = decided["settings"], self.changes + 1
            self._exchange.attempt(self._set_own)
        if self._observation is not None:
            self._observation.predict(self._exchange, len(ended), own["clock_mhz"])
        self._choose_steps_apart(before, len(ended))
        return True

    def rows(self) -> dict[str, str]:
        """Return the result as labelled lines."""
        before = sum(self._before) / max(len(self._before), 1)
        if self._observation is not None:
            return {**self._observation.rows(), "waiting for other ranks": f"{before:.1%} of the time of a step"}
        kind, settings = self._kind, self.settings
        return {
            "levelling": f"{kind.words}s of {min(settings)} to {max(settings)} {kind.unit} on {len(settings)} ranks, "
            f"changed {self.changes} times",
            "waiting for other ranks": f"{self._waiting:.1%} of the time of a step, {before:.1%} before",
        }

    def close(self) -> None:
        """Restore the original settings, or that of the search."""
        if self._sampler is not None:
            self._sampler.stop()
        if self._observation is not None:
            self._observation.close()
        self._hold.release()

    def _try_first_settings(self) -> str | None:
        """Begin with the first settings. Returns why a rank cannot, in which case none may."""
        denials = self._exchange.gather(lambda: self._hold.set(self.settings[self._exchange.rank]))
        return self._exchange.complaint(denials) if any(denials) else None

    def _decide(self, ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Decide, on rank 0, by what all ranks report: the steps between two exchanges, and settings if they change.

        Returns:
            These; of each step that counts, its number, the longest time of a rank, and the share that ranks waited.
        """
        clocks = [rank["clock_mhz"] for rank in ranks]
        steps: list[tuple[int, float, float]] = []
        settings = None
        for number, own_seconds in enumerate(zip(*(rank["seconds"] for rank in ranks), strict=True)):
            if not all(own_seconds):  # one is lost
                continue
            longest = max(own_seconds)
            waiting = 1 - sum(own_seconds) / len(own_seconds) / longest if longest > 0 else 0.0
            steps.append((number, longest, waiting))
            if not self.observes and self._leveller.add_step(own_seconds, None if None in clocks else clocks):
                settings = self._leveller.settings
                break
        return {"steps_apart": ranks[0]["steps_apart"], "steps": steps, "settings": settings}

    def _report(self, ended: Sequence[OwnWork | None]) -> dict[str, Any]:
        clocks_mhz = () if self._sampler is None else self._sampler.take_means_mhz()
        return {
            "seconds": [None if work is None else work.seconds for work in ended],
            "clock_mhz": min(clocks_mhz, default=None),
            "steps_apart": self._proposed_steps_apart,
        }

    def _choose_steps_apart(self, before: float, steps: int) -> None:
        """Say how many steps exchanges should be apart, from what the quickest one took. The word of rank 0 counts."""
        now = self._time_source.now()
        self._exchange_seconds = min(self._exchange_seconds, now - before)
        step_seconds = (now - self._began) / steps
        self._began = now
        if step_seconds > 0:
            apart = math.ceil(self._exchange_seconds / (_EXCHANGE_FRACTION * step_seconds))
            self._proposed_steps_apart = min(max(apart, 1), _MAX_STEPS_APART)

    def _note_waiting(self, waiting: float) -> None:
        if self.changes == 0 and (self.observes or len(self._before) < _COMPARED_STEPS):
            self._before.append(waiting)
        self._waiting += (waiting - self._waiting) / _COMPARED_STEPS  # the latest steps count most

    def _set_own(self) -> None:
        denial = self._hold.set(self.settings[self._exchange.rank])
        if denial is not None:
            raise DeviceError(denial)


def _check_ranks(uuids: Sequence[str], abouts: Sequence[Mapping[str, Any]]) -> None:
    for rank, about in enumerate(abouts):
        if about != abouts[0]:
            raise UsageError(f"rank {rank} levels by {about}, and rank 0 by {abouts[0]}: pass the same to all")
    if len(set(uuids)) < len(uuids):
        raise UsageError("two ranks have the same GPU: give each its own, by ZeusMonitor(gpu_indices=[local_rank])")


def _check_budget(settings: Sequence[Sequence[int]], budget_watts: float | None) -> None:
    lowest_watts = sum(own[-1] for own in settings)
    if budget_watts is not None and budget_watts < lowest_watts:
        raise UsageError(
            f"budget_watts is {budget_watts:g}: the lowest limits of these {len(settings)} GPUs are {lowest_watts:g} W "
            "together"
        )
