"""The tests that every `BatchSizePolicy` passes, as a class."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from zeus_core.errors import UsageError
from zeus_core.jobs.policies import BatchProblem, BatchRun, BatchSizePolicy

__all__ = ["BatchSizePolicyContract"]

_PROBLEM = BatchProblem(batch_sizes=(8, 16, 32, 64, 128), default=32, max_epochs=20)
_EPOCHS = {8: 9, 16: 5, 32: 6, 64: 8, 128: 30}  # of the last size, more than it may take
_EPOCH_COSTS = {8: 30.0, 16: 18.0, 32: 12.0, 64: 10.0, 128: 9.0}


class BatchSizePolicyContract:
    """The tests that every implementation of `BatchSizePolicy` passes.

    Derive a test class and return a policy from its `policy` fixture:

        from tests.jobs.policy_contract import BatchSizePolicyContract

        class TestMyPolicy(BatchSizePolicyContract):
            @pytest.fixture
            def policy(self):
                return MyPolicy()
    """

    @pytest.fixture
    def policy(self) -> BatchSizePolicy:
        """The policy."""
        raise NotImplementedError("a test class derived from BatchSizePolicyContract has a fixture `policy`")

    def test_it_proposes_one_of_the_batch_sizes(self, policy: BatchSizePolicy) -> None:
        """At every point of any history; a cost to stop at is above 0."""
        for problem, runs in _histories():
            proposal = policy.propose(problem, runs, seed=3)
            assert proposal.batch_size in problem.batch_sizes
            assert proposal.max_cost is None or proposal.max_cost > 0
            assert proposal.reason

    def test_a_first_run_is_not_stopped(self, policy: BatchSizePolicy) -> None:
        """There is nothing to compare it with."""
        assert policy.propose(_PROBLEM, [], seed=3).max_cost is None

    def test_asked_again_it_answers_the_same(self, policy: BatchSizePolicy) -> None:
        """It is a pure function: what it was asked meanwhile does not matter."""
        asked = list(_histories())
        proposals = [policy.propose(problem, runs, seed=3) for problem, runs in asked]
        for (problem, runs), proposal in zip(reversed(asked), reversed(proposals), strict=True):
            assert policy.propose(problem, tuple(runs), seed=3) == proposal

    def test_an_infeasible_batch_size_is_never_proposed(self, policy: BatchSizePolicy) -> None:
        """The default neither."""
        for infeasible in (32, 8, 128):
            runs = [BatchRun(infeasible, "infeasible")]
            for _ in range(12):
                proposal = policy.propose(_PROBLEM, runs, seed=3)
                assert proposal.batch_size != infeasible
                runs.append(_run(proposal.batch_size, proposal.max_cost, float(len(runs))))

    def test_without_a_feasible_batch_size_it_says_so(self, policy: BatchSizePolicy) -> None:
        """There is nothing to propose."""
        runs = [BatchRun(size, "infeasible") for size in _PROBLEM.batch_sizes]
        with pytest.raises(UsageError, match="no batch size is left"):
            policy.propose(_PROBLEM, runs, seed=3)

    def test_two_runs_do_not_explore_the_same(self, policy: BatchSizePolicy) -> None:
        """A batch size that was never tried, and is running, is not proposed again, unless it is the default."""
        for problem, runs in _histories():
            begun = list(runs)
            for _ in range(3):
                size = policy.propose(problem, begun, seed=3).batch_size
                tried = {run.batch_size for run in runs if run.outcome in ("reached", "stopped")}
                running = {run.batch_size for run in begun if run.outcome == "running"}
                assert size in tried | {problem.default} or size not in running
                begun.append(BatchRun(size, "running", started_at=1e6))

    def test_runs_of_other_batch_sizes_do_no_harm(self, policy: BatchSizePolicy) -> None:
        """They may be from before the job was declared anew."""
        runs = [_run(size, None, float(size)) for size in (32, 16, 32)]
        others = [BatchRun(7, "reached", 1.0, 1.0, 1.0, 1.0, 1e6), BatchRun(1000, "running", started_at=1e6)]
        asked = policy.propose(_PROBLEM, [*runs, *others], seed=3)
        assert asked.batch_size in _PROBLEM.batch_sizes

    def test_a_single_batch_size_is_all_there_is(self, policy: BatchSizePolicy) -> None:
        """With any outcome of its runs."""
        problem = BatchProblem((32,), 32, 20)
        for runs in (
            [],
            [_run(32, None, 0.0)],
            [BatchRun(32, "stopped", 2.0, 1.0, 1.0, 9.0)],
            [BatchRun(32, "running")],
        ):
            assert policy.propose(problem, runs, seed=3).batch_size == 32


def _histories() -> Iterator[tuple[BatchProblem, list[BatchRun]]]:
    """Make random histories, short and long, in which anything happens to runs of any size."""
    choose = random.Random(0)
    for length in (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 14, 20, 40):
        problem = replace(
            _PROBLEM,
            half_life_runs=choose.choice([None, 5.0]),
            known_epochs=choose.choice([{}, {8: 9.0, 32: 6.0}, {**_EPOCHS, 128: float("inf")}]),
            epoch_costs=choose.choice([{}, _EPOCH_COSTS]),
        )
        yield problem, [_any_run(choose, float(number)) for number in range(length)]


def _any_run(choose: random.Random, started_at: float) -> BatchRun:
    outcome = choose.choice(["reached", "reached", "stopped", "failed", "running"])
    size = choose.choice(_PROBLEM.batch_sizes)
    if outcome == "running":
        return BatchRun(size, "running", started_at=started_at)
    run = replace(_run(size, choose.choice([None, 20.0, 60.0]), started_at), gpu_model=choose.choice([None, "A40"]))
    return replace(run, outcome="failed") if outcome == "failed" else run


def _run(size: int, max_cost: float | None, started_at: float) -> BatchRun:
    epochs, epoch_cost = _EPOCHS[size], _EPOCH_COSTS[size]
    affordable = _PROBLEM.max_epochs if max_cost is None else min(int(max_cost / epoch_cost), _PROBLEM.max_epochs)
    outcome = "reached" if epochs <= affordable else "stopped"
    cost = epoch_cost * min(epochs, affordable)
    return BatchRun(size, outcome, min(epochs, affordable), cost / 200, cost / 2, cost, started_at)  # type: ignore[arg-type]
