"""Chooses the micro-batch of a training by probes of its passes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from zeus_core.adapters import contained
from zeus_core.adapters.contained import log_fault
from zeus_core.batches._prober import Check, Prober, is_memory_error
from zeus_core.batches.micro_batch_search import MicroBatchSearch, micro_batch_sizes
from zeus_core.codec import decode, encode
from zeus_core.device.gpu import uuid_in_job
from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import training_monitor
from zeus_core.optimizer.gpu_facts import GpuFacts, conditions_on, facts_of_gpu, with_power
from zeus_core.optimizer.trial_store import Conditions, JsonTrialStore, TrialStore, checked_facts
from zeus_core.ports import World
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import checked_world
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison, percentage
from zeus_core.search.objectives import Energy, OptimumSelector, checked_selector
from zeus_core.units import duration_text, energy_text
from zeus_core.validate import (
    checked_number,
    checked_object,
    checked_path,
    checked_whole_number,
)

_KNOB = "micro-batch"
STAYS = "the micro-batch stays as it was: %s"
"""The warning that the micro-batch of a training stays, with the reason."""

_logger = logging.getLogger(__name__)


class MicroBatchOptimizer:
    """Finds the micro-batch that takes the least joules per sample, for a given global batch, in a few probes.

    A step on a batch of 64 samples may run as 8 micro-batches of 8 (8 x 8), or as 2 of 32: the gradients are the same
    up to rounding, if their mean is over samples or tokens, and the GPU is filled better. A probe runs the passes of
    some micro-batches without an optimizer step. A size that is out of memory is a result: neither it nor a larger one
    is tried again.

        micro_batch = MicroBatchOptimizer().choose(64, 8, run=forward_and_backward)

    The adapters of frameworks take one as `micro_batch=`. `choose` of another process continues where `profile_path`
    has trials of the same work.

    Args:
        monitor: Measures this rank's GPUs; that of the adapter, or a new one if None.
        optimum_selector: The rule for the best size, by joules and seconds of a sample; `Energy()` if None.
        max_probes: How many sizes are probed at most.
        probe_seconds: How long a probe measures, in seconds. The GPU's energy counter is updated every 0.02 to 0.1 s,
            by which the energy of 2 s is known to some percent.
        profile_path: JSON file in which trials are kept; it may be that of a power-limit search.

    Attributes:
        monitor: As passed.
        chosen: The size that was chosen last; None before.
        original: The size that training would have used; None before.
        trials: The trials of the latest choice, by size; their `steps` are samples.
        out_of_memory: The sizes that are out of memory.
        refused_because: Why the original size stays; None if it need not.
        probes: The probes of the latest choice.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None = None,
        optimum_selector: OptimumSelector | None = None,
        *,
        max_probes: int = 6,
        probe_seconds: float = 2.0,
        profile_path: str | Path | None = None,
    ) -> None:
        if monitor is not None:
            checked_object("monitor", monitor, "begin_window", "a ZeusMonitor(gpu_indices=[0])")
        self.monitor: ZeusMonitor | None = monitor
        self._selector = (
            Energy() if optimum_selector is None else checked_selector(optimum_selector, "optimum_selector")
        )
        if self._selector.prefers_lowest:
            raise UsageError(
                f"optimum_selector is {self._selector!r}, which chooses the lowest setting, and no micro-batch is "
                "worth less than another by itself; pass EnergyWithin(factor=1.1), Energy() or Time()"
            )
        self._max_probes = checked_whole_number("max_probes", max_probes, 1)
        wanted = "a positive number of seconds, such as 2.0"
        self._probe_seconds = checked_number("probe_seconds", probe_seconds, 0.0, math.inf, wanted, is_open=True)
        self._store = TrialStore()
        if profile_path is not None:
            self._store = JsonTrialStore(Path(checked_path("profile_path", profile_path, "profile.json")))
        self._conditions: Conditions | None = None  # of the latest choice
        self._known: dict[str, tuple[list[Trial], list[int]]] = {}  # of this process, by their conditions
        self.chosen: int | None = None
        self.original: int | None = None
        self.batch_size: int | None = None
        """The samples of a step on one rank; None before the first choice."""
        self.trials: dict[int, Trial] = {}
        self.out_of_memory: set[int] = set()
        self.refused_because: str | None = None
        self.probes: int = 0
        self._spent: list[Measurement] = []

    def choose(
        self,
        batch_size: int,
        micro_batch: int,
        run: Callable[[int], object],
        *,
        sizes: Sequence[int] | None = None,
        check: Check | None = None,
        work: Mapping[str, int | str] | None = None,
        world: World | None = None,
        is_out_of_memory: Callable[[Exception], bool] | None = None,
        release: Callable[[], object] = lambda: None,
    ) -> int:
        """Return the best micro-batch: a divisor of the batch. Every rank must call this, and gets the same.

        An error of `run` other than out of memory ends the search: it is logged, and the original size stays.

        Args:
            batch_size: The samples of an optimizer step on this rank.
            micro_batch: The original size, which stays if no other is certainly better.
            run: Runs the passes of one micro-batch of this many samples, forward and backward, without collectives. The
                first call with a size comes before its measurement.
            sizes: The divisors of the batch to choose from, with the original one; all of them if None.
            check: Returns, for people, how the gradients of a step differ between two sizes; None if only by rounding.
                It is called with the original size and one beside it, the smaller if there is one, before all probes.
            work: Facts that distinguish this work from other work in the profile, such as {"parameters": 124439808}.
            world: The ranks; this process alone if None.
            is_out_of_memory: Returns whether an error of `run` is one; `MemoryError`, and torch's, if None.
            release: Releases what a failed `run` has left in memory. Called outside of the handling of its error.

        Raises:
            UsageError: An argument is wrong, such as a batch that `micro_batch` does not divide.
        """
        possible = micro_batch_sizes(batch_size, micro_batch)
        if sizes is not None:
            possible = [size for size in possible if size in sizes or size == micro_batch]
        facts = checked_facts("work", work or {})
        exchange = Exchange(checked_world(world))
        self._begin(batch_size, micro_batch)
        prober = Prober(run, check, is_out_of_memory or is_memory_error, release)
        try:
            self._search(possible, facts, exchange, prober)
        except Exception as error:
            self.refused_because = f"the probes failed: {error}"
            log_fault(self, "the micro-batch stays as it was", error)
            self.chosen = micro_batch
        return self.chosen or micro_batch

    def refuse(self, batch_size: int, micro_batch: int, reason: str) -> None:
        """Say why the original size of some training stays, without a search."""
        self._begin(batch_size, micro_batch)
        self._stay(reason)

    def adopt(self, monitor: ZeusMonitor | None, optimizer: object = None) -> None:
        """Use the monitor of an adapter if there is none, and the store of its search for another setting, if any."""
        self.monitor = self.monitor or monitor
        self._store = getattr(optimizer, "trial_store", None) or self._store

    @contained
    def tell_out_of_memory(self, size: int) -> None:
        """Report that a size was out of memory in training: it is never chosen again for this work."""
        self.out_of_memory.add(checked_whole_number("size", size, 1))
        self._keep()

    @property
    def comparison(self) -> Comparison | None:
        """The original and the chosen size compared, by sample; None if one of them has no trial."""
        if self.chosen not in self.trials or self.original not in self.trials:
            return None
        return Comparison(self.trials[self.original], self.trials[self.chosen])

    @contained(default=dict[str, str])
    def result(self) -> dict[str, str]:
        """Return the result of the latest choice for people, as labelled lines; empty before."""
        if self.chosen is None or self.batch_size is None:
            return {}
        rows = {"micro-batch": self._choice_text()}
        comparison = self.comparison
        if comparison is not None and self.chosen != self.original:
            saving = percentage(comparison.saving_fraction, comparison.saving_uncertainty)
            rows["batch saving"] = f"{saving} of the energy of a sample, without optimizer steps"
        if self.probes:
            spent = sum(self._spent[1:], self._spent[0])
            energy = energy_text(spent.total_energy or 0.0)
            rows["batch search"] = (
                f"{self.probes} probes, {duration_text(spent.time)}, {energy}, before training and in no total"
            )
        return rows

    def _begin(self, batch_size: int, micro_batch: int) -> None:
        self.chosen = self.original = micro_batch
        self.batch_size, self.refused_because, self.probes = batch_size, None, 0
        self.trials, self.out_of_memory, self._spent, self._conditions = {}, set(), [], None

    def _stay(self, reason: str) -> None:
        self.chosen, self.refused_because = self.original, reason
        _logger.warning(STAYS, reason)

    def _choice_text(self) -> str:
        def text(size: int | None) -> str:
            return f"{size} x {(self.batch_size or 0) // (size or 1)}"

        if self.refused_because is not None:
            return f"{text(self.chosen)} as it was: {self.refused_because}"
        sizes = f"{len(self.trials)} sizes" + (f", {len(self.out_of_memory)} out of memory" * bool(self.out_of_memory))
        was = "as it was" if self.chosen == self.original else f"in place of {text(self.original)}"
        return f"{text(self.chosen)} {was}, the best of {sizes} by {self._selector!r}"

    def _search(self, sizes: list[int], work: Mapping[str, int | str], exchange: Exchange, prober: Prober) -> None:
        """Probe sizes until enough is known, and choose. An exchange of all ranks comes before each decision."""
        assert self.original is not None
        assert self.batch_size is not None
        batches = exchange.gather(lambda: [self.batch_size, self.original])
        if any(batch != batches[0] for batch in batches):
            raise UsageError(f"the ranks have different batches, of samples and a micro-batch: {batches}")
        gpus = self._gpus_of_all(exchange)
        place = sizes.index(self.original)
        reasons: list[str | None] = [None if gpus else "no GPU is measured"]
        if gpus and len(sizes) == 1:
            reasons = ["no other one leaves the steps as they are"]
        elif gpus:
            beside = self.original, sizes[place - 1 if place > 0 else 1]
            reasons = exchange.gather(lambda: prober.check(beside))
        if any(reasons):
            self._stay(exchange.complaint(reasons) if len(reasons) > 1 else str(reasons[0]))
            return
        self._conditions = conditions_on(gpus, _KNOB, {**work, "batch_size": self.batch_size, "ranks": exchange.size})
        search = MicroBatchSearch(sizes, self.original, with_power(self._selector, gpus))
        trials, out_of_memory = exchange.decide(self._recall)
        for trial in decode(list[Trial], trials):
            search.tell(trial)
        search.out_of_memory.update(out_of_memory)
        self.trials, self.out_of_memory = search.trials, search.out_of_memory
        while len(self.trials) + len(self.out_of_memory) < self._max_probes and (size := search.ask()) is not None:
            self._probe(size, self.batch_size, search, exchange, prober)
            if exchange.rank == 0:
                self._keep()
        self._conclude(search, exchange)

    def _gpus_of_all(self, exchange: Exchange) -> list[GpuFacts]:
        """Return the facts of the GPUs of all ranks; none if one of them measures no GPU."""
        monitor = self.monitor = training_monitor(self.monitor)
        sent = exchange.gather(lambda: {uuid_in_job(gpu): encode(facts_of_gpu(gpu)) for gpu in monitor.gpus.values()})
        by_uuid = {uuid: decode(GpuFacts, facts) for of_rank in sent for uuid, facts in of_rank.items()}
        return list(by_uuid.values()) if all(sent) else []

    def _conclude(self, search: MicroBatchSearch, exchange: Exchange) -> None:
        best = exchange.decide(lambda: search.choice)
        if best is None:
            self._stay("no micro-batch fits into memory, as far as was tried")
        elif self.original not in self.trials or self._is_certain(search, best):
            self.chosen = best

    def _is_certain(self, search: MicroBatchSearch, best: int) -> bool:
        """Return whether a size is better than the original one by more than the uncertainty of both energies."""
        assert self.original is not None
        before, after = search.cost(self.original), search.cost(best)
        comparison = Comparison(self.trials[self.original], self.trials[best])
        return before - after > comparison.saving_uncertainty * before or math.isinf(before) > math.isinf(after)

    def _probe(self, size: int, batch_size: int, search: MicroBatchSearch, exchange: Exchange, prober: Prober) -> None:
        assert self.monitor is not None
        monitor, seconds = self.monitor, self._probe_seconds
        sent = exchange.gather(lambda: prober.probe(monitor, size, batch_size, seconds))
        self.probes += 1
        self._spent.append(Measurement.from_ranks([decode(Measurement, one["spent"]) for one in sent]))
        if any(one["measured"] is None for one in sent):
            search.tell_out_of_memory(size)
            return
        measurement = Measurement.from_ranks([decode(Measurement, one["measured"]) for one in sent])
        search.tell(Trial(size, sum(one["samples"] for one in sent), measurement))

    def _recall(self) -> tuple[Any, list[int]]:
        """Return what is known of the work, in JSON types: from this process, or from the profile."""
        assert self._conditions is not None
        trials, out_of_memory = self._known.get(str(self._conditions)) or (
            self._store.load(self._conditions),
            self._store.load_out_of_memory(self._conditions),
        )
        return encode(list(trials)), list(out_of_memory)

    def _keep(self) -> None:
        if self._conditions is not None:
            known = [self.trials[size] for size in sorted(self.trials)], sorted(self.out_of_memory)
            self._known[str(self._conditions)] = known
            self._store.save(self._conditions, *known)


MicroBatchSetting: TypeAlias = Literal["auto"] | int | MicroBatchOptimizer
"""The argument `micro_batch` of an adapter."""


def checked_micro_batch(
    value: MicroBatchSetting, monitor: ZeusMonitor | None = None, optimizer: object = None
) -> int | MicroBatchOptimizer:
    """Return the argument `micro_batch` of an adapter: a size, or an optimizer, which is made for "auto".

    Args:
        value: The argument.
        monitor: The monitor of an optimizer without one.
        optimizer: Searches for another setting: one that is made keeps its trials in the same file.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(value, str) and value == "auto":
        value = MicroBatchOptimizer()
        value.adopt(monitor, optimizer)
    if isinstance(value, MicroBatchOptimizer):
        value.adopt(monitor)
        return value
    wanted = '"auto", a number of samples, such as 8, or a MicroBatchOptimizer'
    return checked_whole_number("micro_batch", value, 1, wanted)
