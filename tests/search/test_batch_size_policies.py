"""The policies for the batch size of a recurring job."""

import math

import pytest

from zeus_core.errors import UsageError
from zeus_core.search.batch_size import BatchProblem, BatchRun, DefaultBatchSize
from zeus_core.testing.contracts import BatchSizePolicyContract


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
