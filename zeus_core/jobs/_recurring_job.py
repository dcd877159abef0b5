"""A recurring job: declared once, and run again and again."""

from __future__ import annotations

import logging
import math
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.jobs._epoch_probe import EpochProbe
from zeus_core.jobs._job_database import check_storage, shown_storage
from zeus_core.jobs._job_records import JobDeclaration, JobRun, Target
from zeus_core.jobs._job_store import JobStore
from zeus_core.jobs._next_batch_size import NextBatchSize, divisible_sizes
from zeus_core.jobs._run_reporter import PendingRuns, RunReporter, fault_text
from zeus_core.jobs._run_rules import (
    LearningRateRule,
    RunRules,
    checked_objective,
    checked_rule,
    discovered_gpus,
    rule_name,
)
from zeus_core.jobs.policies import AdaptiveBatchSize, BatchProblem, BatchProposal, BatchSizePolicy
from zeus_core.jobs.recurring_run import BegunRun, RecurringRun, is_out_of_memory
from zeus_core.ports import TimeSource, World
from zeus_core.ports.background import ThreadBackground
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.time_source import MonotonicTime, clock_seconds
from zeus_core.ports.world import checked_world
from zeus_core.search.objectives import Objective
from zeus_core.training.run_meter import JobGpus
from zeus_core.validate import (
    checked_number,
    checked_object,
    checked_path,
    checked_whole_number,
    wrong_argument,
)

# After so many runs without one that reached the target, each begin says so: it may be out of reach.
_RUNS_WITHOUT_TARGET = 5

_logger = logging.getLogger(__name__)


class RecurringJob:
    """A training that runs again and again: it learns from run to run which global batch size costs least.

        job = RecurringJob(
            "nightly", [32, 64, 128, 256], 128, target=Target("eval_accuracy", 0.84), max_epochs=20
        )
        with job.run() as run:
            train(batch_size=run.batch_size, learning_rate=run.learning_rate(5e-5), recurring_run=run)

    A run ends when an evaluation reaches the target, when it has trained for `max_epochs`, or when it cannot pay off
    any more: a batch size that has never reached the target is given up at a multiple of what the best one costs.
    `run.outcome` then is "reached" or "stopped"; run again if you need the target tonight.

    Runs may overlap, also in processes of other machines that use the same storage: each knows what the others are at,
    and explores something else. The batch size of a run that was killed is tried again. Errors of the training pass
    through; one of a device that is out of memory rules out its batch size, and larger ones.

    Where the storage cannot be reached, training goes on: a run that begins has the default batch size, and results are
    kept in `pending_folder` until the next run of the job reports them.

    Args:
        name: The name of the job in the storage.
        batch_sizes: The global batch sizes to choose from: samples of an optimizer step, over all ranks.
        default: The one that you would use; it is tried first.
        target: The metric to reach.
        max_epochs: Epochs after which a run ends short of the target.
        objective: The cost of a run until the target, to be minimized: `Energy()`, `Time()`, or `ZeusCost`; if None,
            `ZeusCost(eta_knob=0.5)` over the GPUs of the job.
        storage: The URL of the database, as Optuna takes it: of a file, or of a server, such as
            "postgresql+psycopg://user@host/database", for a team.
        policy: The strategy; `zeus_core.jobs.policies.AdaptiveBatchSize()`, which costs least in replays, if None.
        half_life_runs: After so many runs an observation counts half, for data that changes; all count alike if None.
        learning_rate_rule: How the learning rate follows the batch size: "linear", "square root", "none", or a function
            of the base rate, the batch size and the default.
        world: The ranks that train together, such as `zeus_core.pytorch.torch_world()`; this process alone if None.
        gpu_model: The GPU model of this run; that of the GPUs that this process sees if None.
        heartbeat_seconds: How often a run says that it is alive. One that has not for twice as long was killed.
        max_retries: How often the batch size of a run that was killed is tried again at once.
        pending_folder: The folder of results that the storage could not take.
        seed: For policies that draw at random.
        time_source: Real time if None.

    Attributes:
        name: As passed.
        batch_sizes: The batch sizes, the lowest first.
        default: As passed.
        target: As passed.
        max_epochs: As passed.

    Raises:
        UsageError: An argument is wrong; the message names it.
        ModuleNotFoundError: Optuna is not installed; the message contains the pip command.
        ImportError: It is too old; the message contains the pip command.
    """

    def __init__(
        self,
        name: str,
        batch_sizes: Sequence[int],
        default: int,
        target: Target,
        max_epochs: int,
        objective: Objective | None = None,
        storage: str = "sqlite:///zeus.db",
        *,
        policy: BatchSizePolicy | None = None,
        half_life_runs: float | None = None,
        learning_rate_rule: LearningRateRule = "square root",
        world: World | None = None,
        gpu_model: str | None = None,
        heartbeat_seconds: int = 60,
        max_retries: int = 1,
        pending_folder: str | os.PathLike[str] = "zeus-pending",
        seed: int = 0,
        time_source: TimeSource | None = None,
    ) -> None:
        self.name: str = _checked_name(name)
        self._problem = BatchProblem(tuple(batch_sizes), default, max_epochs, half_life_runs)
        self.batch_sizes: tuple[int, ...] = self._problem.batch_sizes
        self.default: int = self._problem.default
        if not isinstance(target, Target):  # such as the value alone: it would fail after the first epoch
            raise wrong_argument("target", target, 'a Target("eval_accuracy", 0.84)')
        self.target: Target = target
        self.max_epochs: int = self._problem.max_epochs
        self._objective = checked_objective(objective)
        self._policy = _checked_policy(policy)
        self._rule = checked_rule(learning_rate_rule)
        self._world = checked_world(world)
        self._is_world_given = world is not None
        self._gpu_model = gpu_model
        self._heartbeat_seconds = checked_whole_number("heartbeat_seconds", heartbeat_seconds, 1, maximum=10**6)
        self._max_retries = checked_whole_number("max_retries", max_retries, 0)
        folder = Path(checked_path("pending_folder", pending_folder, "zeus-pending", "folder"))
        self._seed = checked_whole_number("seed", seed, 0)
        self._time_source = time_source or MonotonicTime()
        self._storage = check_storage(storage)
        self._pending = PendingRuns(folder, shown_storage(storage), self.name)

    @contextmanager
    def run(self) -> Iterator[RecurringRun]:
        """Return the next run, as a `with` block around the training: a collective call at its begin.

        Raises:
            UsageError: The job was declared with another target, objective or rule of the learning rate before; the
                database is of a newer version; no batch size is left, or none fits the ranks.
            WorldError: One of these was raised on rank 0, or a rank did not answer in time.
        """
        gpus, exchange = self._place()
        reporters: list[RunReporter] = []  # on rank 0
        begun = exchange.decide(lambda: self._begin(gpus, reporters))
        record, reporter = decode(JobRun, begun["record"]), reporters[0] if reporters else None
        run = RecurringRun(BegunRun(record, begun["number"], self._rules, exchange, reporter, gpus, self._time_source))
        try:
            yield run
        except BaseException as error:
            run.end(error)
            raise
        run.end(None)

    def measure_epochs(self, train: Callable[[RecurringRun], object], *, seconds: float = 5.0) -> None:
        """Measure what an epoch costs at each batch size of which that is not known yet. A collective call.

        Call it before `run`, each time: it trains only where there is something to measure, which is once on each GPU
        model. The strategy then needs fewer trials. A batch size that is out of memory is never proposed, nor is a
        larger one; other errors pass through.

        Args:
            train: Trains, from the beginning, with the run that it gets; the same function as for `run`. The adapters
                end it after some steps, as `run.progress` does in a loop of your own. It must do nothing else, such as
                publish its model.
            seconds: How long the steps are measured at each batch size; an epoch of them is enough.

        Raises:
            UsageError: As `run`, or an argument is wrong.
            WorldError: As `run`.
        """
        seconds = checked_number("seconds", seconds, 0.0, math.inf, "seconds above 0, such as 5", is_open=True)
        gpus, exchange = self._place()
        reporters: list[RunReporter] = []  # on rank 0
        for size in exchange.decide(lambda: self._unmeasured(gpus, reporters)):
            proposal = BatchProposal(size, reason="the cost of an epoch is measured")
            record = self._record(replace(self._problem, gpu_model=gpus.model), proposal)
            reporter = reporters[0] if reporters else None
            begun = BegunRun(record, None, self._rules, exchange, reporter, gpus, self._time_source)
            if not _has_trained(EpochProbe(begun, seconds), train):
                return  # and neither would a larger one

    @property
    def _rules(self) -> RunRules:
        return RunRules(self.target, self.max_epochs, self._objective, self._rule, self.default)

    def _place(self) -> tuple[JobGpus, Exchange]:
        """Return the GPUs and the ranks of a run."""
        self._check_ranks()
        gpus = discovered_gpus()
        return gpus if self._gpu_model is None else replace(gpus, model=self._gpu_model), Exchange(self._world)

    def _opened(self) -> JobStore:
        """Return the history on rank 0, with all that waited for it."""
        store = JobStore(self._storage, self.name, self._heartbeat_seconds, self._max_retries)
        store.declare(self._declaration())
        self._pending.report(store)
        return store

    def _next_size(self, gpus: JobGpus) -> NextBatchSize:
        sizes = divisible_sizes(self.batch_sizes, self.default, self._world.size)
        problem = replace(self._problem, batch_sizes=sizes, gpu_model=gpus.model)
        return NextBatchSize(problem, self._world.size, self._policy, self._seed)

    def _unmeasured(self, gpus: JobGpus, reporters: list[RunReporter]) -> list[int]:
        """Return the batch sizes to measure, on rank 0."""
        next_size = self._next_size(gpus)
        try:
            store = self._opened()
            records = [stored.record for stored in store.runs()]
        except UsageError:
            raise
        except Exception as error:
            text = "the storage %s cannot be reached, so that the cost of epochs is not measured: %s"
            _logger.error(text, shown_storage(self._storage), fault_text(error))
            return []
        reporters.append(RunReporter(store, None, self._pending, ThreadBackground(), float(self._heartbeat_seconds)))
        return next_size.unmeasured(records)

    def _begin(self, gpus: JobGpus, reporters: list[RunReporter]) -> dict[str, Any]:
        """Begin a run on rank 0. Return it in JSON types."""
        next_size = self._next_size(gpus)
        store, number = None, None
        try:
            store = self._opened()
            stored = store.begin(lambda runs, killed: self._proposed(next_size, runs, killed))
            number, record = stored.number, stored.record
        except UsageError:
            raise
        except Exception as error:
            _logger.error(
                "the storage %s cannot be reached: this run has the default batch size of %d, and its result is kept "
                "and reported by the next one: %s",
                shown_storage(self._storage),
                self.default,
                fault_text(error),
            )
            store = None
            proposal = BatchProposal(self.default, reason="the storage cannot be reached")
            record = self._record(next_size.problem, proposal)
        reporters.append(RunReporter(store, number, self._pending, ThreadBackground(), float(self._heartbeat_seconds)))
        _logger.info("run %s of %s has batch size %d: %s", number, self.name, record.batch_size, record.reason)
        return {"number": number, "record": encode(record)}

    def _proposed(self, next_size: NextBatchSize, records: Sequence[JobRun], killed: JobRun | None) -> JobRun:
        """Return the record of a run that begins with this history."""
        self._warn_if_out_of_reach(records)
        return self._record(next_size.problem, next_size.proposal(records, killed))

    def _record(self, problem: BatchProblem, proposal: BatchProposal) -> JobRun:
        return JobRun(
            uuid.uuid4().hex,
            proposal.batch_size,
            "running",
            proposal.reason,
            clock_seconds(self._time_source),
            proposal.max_cost,
            problem.gpu_model,
            self._world.size,
        )

    def _warn_if_out_of_reach(self, records: Sequence[JobRun]) -> None:
        over = [record for record in records if record.outcome in {"reached", "stopped"}]
        if len(over) < _RUNS_WITHOUT_TARGET or any(record.outcome == "reached" for record in over):
            return
        values = [best for record in over if (best := record.best_metric(self.target)) is not None]
        choose = max if self.target.is_higher_better else min
        best = choose(values) if values else None
        _logger.warning(
            "none of %d runs of the job %r has reached %s; the best value was %s: set another target, or raise "
            "max_epochs",
            len(over),
            self.name,
            self.target,
            "no number" if best is None else f"{best:g}",
        )

    def _declaration(self) -> JobDeclaration:
        return JobDeclaration(
            self.batch_sizes,
            self.default,
            self.target,
            self.max_epochs,
            "ZeusCost(eta_knob=0.5)" if self._objective is None else repr(self._objective),
            rule_name(self._rule),
            type(self._policy).__name__,
        )

    def _check_ranks(self) -> None:
        others = os.environ.get("WORLD_SIZE", "1")
        if not self._is_world_given and others.isdecimal() and int(others) > 1:
            raise UsageError(
                f"this process is one of {others}, and world is None; call torch.distributed.init_process_group(), "
                "and pass world=zeus_core.pytorch.torch_world() on each of them"
            )


def _has_trained(probe: EpochProbe, train: Callable[[RecurringRun], object]) -> bool:
    """Train with a run that measures; return False if it is out of memory."""
    try:
        train(probe)
    except Exception as error:
        probe.end(error)
        if not is_out_of_memory(error):
            raise
        return False
    probe.end(None)
    return True


def _checked_name(name: str) -> str:
    wanted = 'a name, such as "nightly"'
    if not name.strip() or len(name) > 200:
        raise UsageError(f"name is {name!r:.60}; it must be {wanted}, of 1 to 200 characters")
    return name


def _checked_policy(policy: BatchSizePolicy | None) -> BatchSizePolicy:
    if policy is None:
        return AdaptiveBatchSize()
    return checked_object("policy", policy, "propose", "a BatchSizePolicy object, such as AdaptiveBatchSize()")
