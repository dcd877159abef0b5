"""The policies for the batch size of a recurring job."""

import math

import numpy as np
import pytest

from benchmarks._published_batch_size import PublishedBatchSize
from tests.jobs.policy_contract import BatchSizePolicyContract
from zeus_core.errors import UsageError
from zeus_core.jobs.policies import AdaptiveBatchSize, BatchProblem, BatchRun
from zeus_core.jobs.policies._gaussian_process import CensoredValue, Kernel, posterior
from zeus_core.jobs.policies.fixed_batch_sizes import DefaultBatchSize, GridBatchSize


class TestDefaultBatchSize(BatchSizePolicyContract):
    @pytest.fixture
    def policy(self):
        return DefaultBatchSize()

    def test_it_proposes_the_default_whatever_happened(self, policy):
        problem = BatchProblem((8, 16), 8, 10)
        runs = [BatchRun(8, "stopped", 10, cost=9.0), BatchRun(16, "reached", 1, cost=1.0)]
        assert policy.propose(problem, runs, 0).batch_size == 8
        assert policy.propose(problem, runs, 0).max_cost is None

    def test_an_infeasible_default_is_replaced_by_its_neighbour(self, policy):
        problem = BatchProblem((8, 16, 64), 64, 10)
        assert policy.propose(problem, [BatchRun(64, "infeasible")], 0).batch_size == 16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BatchProblem((8, 16), 12, 10), "default is 12; it must be one of batch_sizes: 8, 16"),
        (lambda: BatchProblem((), 12, 10), r"batch_sizes is \(\); it must be batch sizes, such as"),
        (lambda: BatchProblem((8,), 8, 0), "max_epochs is 0; it must be a whole number, at least 1"),
        (lambda: BatchProblem((8,), 8, 9, half_life_runs=0), "half_life_runs is 0; it must be a number of runs"),
        (lambda: BatchProblem((8,), 8, 9, known_epochs={8: math.nan}), r"known_epochs\[8\] is nan; it must be a numb"),
        (lambda: BatchProblem((8,), 8, 9, epoch_costs={8: math.inf}), r"epoch_costs\[8\] is inf; it must be a number"),
        (lambda: BatchRun(8, "done"), "BatchRun.outcome is 'done'; it must be one of 'reached'"),
        (lambda: BatchRun(8, "reached", 3, cost=math.nan), "BatchRun.cost is nan; it must be a number, at least 0"),
        (lambda: BatchRun(8, "reached", 3), "a run at batch size 8 that reached its target has a cost of 0 and 3 epo"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_out_of_memory_on_another_gpu_model_says_nothing_about_this_one():
    problem = BatchProblem((8, 16), 16, 10, gpu_model="A40")
    runs = [BatchRun(16, "infeasible", gpu_model="V100")]
    assert DefaultBatchSize().propose(problem, runs, 0).batch_size == 16


class TestAdaptiveBatchSize(BatchSizePolicyContract):
    @pytest.fixture
    def policy(self):
        return AdaptiveBatchSize()


class TestPublishedBatchSize(BatchSizePolicyContract):
    @pytest.fixture
    def policy(self):
        return PublishedBatchSize()


class TestGridBatchSize(BatchSizePolicyContract):
    @pytest.fixture
    def policy(self):
        return GridBatchSize()


PROBLEM = BatchProblem((8, 16, 32, 64, 128), 32, 20)


def reached(size, epochs, cost, **others):
    return BatchRun(size, "reached", epochs, cost=cost, **others)


class TestTheAdaptivePolicy:
    def test_a_size_that_has_succeeded_is_never_stopped_and_others_always_are(self):
        runs = [reached(32, 5, 100.0)]
        for number in range(12):
            proposal = AdaptiveBatchSize().propose(PROBLEM, runs, 0)
            is_proven = proposal.batch_size in {run.batch_size for run in runs if run.outcome == "reached"}
            assert (proposal.max_cost is None) == is_proven
            if not is_proven:
                assert 1.25 * 90 < proposal.max_cost < 1.6 * 110
            runs.append(reached(proposal.batch_size, 5 + number % 2, 100.0 + number))

    def test_what_was_stopped_is_given_one_more_chance_at_most(self):
        runs = [reached(32, 5, 100.0), reached(32, 5, 100.0)]
        tried = []
        for _ in range(20):
            size = AdaptiveBatchSize().propose(PROBLEM, runs, 0).batch_size
            tried.append(size)
            runs.append(reached(32, 5, 100.0) if size == 32 else BatchRun(size, "stopped", 7, cost=140.0))
        assert max(tried.count(size) for size in PROBLEM.batch_sizes if size != 32) <= 2
        assert tried.count(32) >= 16

    def test_epochs_of_another_gpu_model_count_and_its_costs_do_not(self):
        elsewhere = [reached(size, epochs, 1e6, gpu_model="V100") for size, epochs in ((16, 5), (32, 5), (64, 9))] * 3
        problem = BatchProblem((16, 32, 64), 32, 20, epoch_costs={16: 4.0, 32: 3.0, 64: 2.9}, gpu_model="A40")
        assert AdaptiveBatchSize().propose(problem, elsewhere, 0).batch_size == 32
        cheap = BatchProblem((16, 32, 64), 32, 20, epoch_costs={16: 1.0, 32: 3.0, 64: 2.9}, gpu_model="A40")
        assert AdaptiveBatchSize().propose(cheap, elsewhere, 0).batch_size == 16

    def test_known_epochs_and_epoch_costs_lead_to_the_best_size_at_once(self):
        problem = BatchProblem(
            PROBLEM.batch_sizes,
            32,
            20,
            known_epochs={8: math.inf, 16: 5.0, 32: 6.0, 64: 8.0, 128: 9.0},
            epoch_costs={8: 9.0, 16: 5.0, 32: 4.0, 64: 3.5, 128: 2.0},
        )
        assert AdaptiveBatchSize().propose(problem, [], 0).batch_size == 128

    def test_it_walks_on_where_costs_fall(self):
        runs, order = [], []
        for _ in range(8):
            size = AdaptiveBatchSize().propose(PROBLEM, runs, 0).batch_size
            order.append(size)
            runs.append(reached(size, 5, 10_000.0 / size))
        assert order[0] == 32
        assert order[-1] == 128
        assert 8 not in order

    def test_with_a_half_life_it_tries_anew_when_the_best_gets_dearer(self):
        problem = BatchProblem((8, 16, 32, 64, 128), 32, 90, half_life_runs=20.0)
        steady = [reached(size, 10, 100.0 + abs(size - 32)) for size in (32, 16, 64, *[32] * 12)]
        after = [*steady, *[reached(32, 30, 300.0)] * 3]
        assert AdaptiveBatchSize().propose(problem, steady, 0).batch_size == 32
        assert AdaptiveBatchSize().propose(problem, after, 0).batch_size != 32

    @pytest.mark.parametrize("half_life_runs", [None, 20.0])
    @pytest.mark.parametrize(
        "short",
        [
            BatchRun(64, "stopped", 3, cost=30.0),  # the training ends by itself, long before it is too dear
            BatchRun(64, "stopped", 20, cost=110.0),  # after the most epochs
            BatchRun(64, "failed", 2, cost=20.0),
            BatchRun(64, "failed"),  # before its first evaluation
        ],
    )
    def test_a_size_that_never_succeeds_is_not_tried_night_after_night(self, short, half_life_runs):
        tried = nights(14, {64: short}, half_life_runs)
        assert 1 <= tried.count(64) <= 2

    def test_a_failure_says_something_of_the_sizes_beside_it(self):
        assert 128 in nights(6, {})
        assert 128 not in nights(14, {64: BatchRun(64, "failed")})

    def test_a_failure_of_the_best_size_does_not_close_it(self):
        runs = [*(reached(32, 8, 100.0) for _ in range(3)), reached(16, 8, 130.0), reached(64, 8, 130.0)]
        assert AdaptiveBatchSize().propose(PROBLEM, [*runs, BatchRun(32, "failed", 2, cost=20.0)], 0).batch_size == 32

    def test_a_default_that_fails_again_gives_way_to_others(self):
        runs = [BatchRun(32, "failed")]
        assert AdaptiveBatchSize().propose(PROBLEM, runs, 0).batch_size == 32
        assert AdaptiveBatchSize().propose(PROBLEM, runs * 2, 0).batch_size != 32

    def test_with_a_half_life_costs_of_epochs_age_too(self):
        problem = BatchProblem((16, 32, 64), 32, 90, half_life_runs=20.0)
        steady = [reached(size, 10, 100.0 + abs(size - 32)) for size in (32, 16, 64, *[32] * 12)]
        assert AdaptiveBatchSize().propose(problem, steady, 0).batch_size == 32
        assert AdaptiveBatchSize().propose(problem, [*steady, reached(32, 10, 170.0)], 0).batch_size != 32

    def test_with_a_half_life_measured_costs_are_as_old_as_the_job(self):
        problem = BatchProblem((16, 32, 64), 32, 90, half_life_runs=20.0, epoch_costs={16: 11.6, 32: 10.0, 64: 13.2})
        steady = [reached(size, 10, 100.0 + abs(size - 32)) for size in (32, 16, 64, *[32] * 12)]
        assert AdaptiveBatchSize().propose(problem, steady, 0).batch_size == 32
        assert AdaptiveBatchSize().propose(problem, [*steady, *[reached(32, 10, 170.0)] * 2], 0).batch_size != 32

    def test_steady_work_is_not_explored_anew_with_a_half_life(self):
        problem = BatchProblem((16, 32, 64), 32, 90, half_life_runs=20.0)
        runs = []
        for _ in range(60):
            size = AdaptiveBatchSize().propose(problem, runs, 0).batch_size
            runs.append(reached(size, 10, 100.0 if size == 32 else 108.0))
        assert sum(run.batch_size != 32 for run in runs) <= 4


def nights(count, failures, half_life_runs=None):
    """Return the sizes of so many nights of work that costs least at 128, where some sizes fail."""
    problem = BatchProblem(PROBLEM.batch_sizes, 32, 20, half_life_runs=half_life_runs)
    runs = []
    for number in range(count):
        size = AdaptiveBatchSize().propose(problem, runs, 0).batch_size
        epochs = round((8 + size / 64) * (0.95, 1.0, 1.05)[number % 3])
        runs.append(failures.get(size) or reached(size, epochs, epochs * 12 * (1 + 32 / size)))
    return [run.batch_size for run in runs]


class TestThePublishedPolicy:
    def test_a_killed_run_does_not_hold_up_the_exploration(self):
        runs = [reached(32, 5, 100.0), BatchRun(16, "failed", 2, cost=40.0)]
        assert PublishedBatchSize().propose(PROBLEM, runs, 0).batch_size == 16

    def test_two_equal_samples_do_not_settle_the_choice(self):
        problem = BatchProblem((16, 32), 32, 20)
        runs = [reached(size, 5, cost) for size, cost in ((32, 100.0), (16, 101.0)) for _ in range(2)]
        drawn = {PublishedBatchSize().propose(problem, runs, seed).batch_size for seed in range(20)}
        assert drawn == {16, 32}

    def test_while_a_size_is_explored_others_run_at_the_best_so_far(self):
        runs = [reached(32, 5, 100.0), reached(16, 5, 80.0), BatchRun(8, "running")]
        assert PublishedBatchSize().propose(PROBLEM, runs, 0).batch_size == 16


def test_a_bound_moves_values_around_it_and_known_values_stay():
    kernel = Kernel(deviation=1.0, length=3.0, own_deviation=0.1)
    observations = [CensoredValue(5.0, 1.0, 0.01), CensoredValue(6.0, 1.5, 0.1, is_censored=True)]
    means, covariance = posterior(kernel, observations, np.array([5.0, 6.0, 7.0]))
    assert means[0] == pytest.approx(1.0, abs=0.05)
    assert means[1] > 1.5
    assert means[2] > 1.5
    assert np.all(np.linalg.eigvalsh(covariance) > -1e-9)


def test_a_bound_below_what_is_known_tells_nothing():
    kernel = Kernel(deviation=1.0, length=3.0, own_deviation=0.1)
    known = [CensoredValue(5.0, 1.0, 0.01), CensoredValue(6.0, 2.0, 0.01)]
    places = np.array([6.0, 7.0])
    without, _ = posterior(kernel, known, places)
    with_bound, _ = posterior(kernel, [*known, CensoredValue(6.0, 0.5, 0.1, is_censored=True)], places)
    assert with_bound == pytest.approx(without, abs=1e-3)
