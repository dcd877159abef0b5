"""The replay of recurring jobs: each rule of the published simulation, on a small trace made by hand."""

import math

import pytest

from benchmarks._published_batch_size import PublishedBatchSize
from zeus_core.errors import UsageError
from zeus_core.jobs.policies import AdaptiveBatchSize, BatchProblem, BatchProposal
from zeus_core.jobs.policies.fixed_batch_sizes import DefaultBatchSize, GridBatchSize
from zeus_core.jobs.replay._workload import EpochAtLimit, RecordedSize, Workload
from zeus_core.jobs.replay.job_replay import Contestant, replay
from zeus_core.jobs.replay.traces import Submission

MAX_WATTS = 300.0


def size(epochs, seconds=10.0):
    """A batch size whose epoch takes 10 s at 300 W, 11 s at 200 W and 20 s at 100 W: it costs least at 200 W."""
    limits = {300: (1.0, 290.0), 200: (1.1, 195.0), 100: (2.0, 100.0)}
    return RecordedSize(
        tuple(epochs),
        {watts: EpochAtLimit(seconds * slow, seconds * slow * draw) for watts, (slow, draw) in limits.items()},
    )


def epoch_cost(seconds=10.0, slow=1.1, draw=195.0):
    return 0.5 * seconds * slow * draw + 0.5 * MAX_WATTS * seconds * slow


BEST = epoch_cost()
MEAN = (epoch_cost(10, 1.0, 290.0) + epoch_cost(10, 1.1, 195.0) + epoch_cost(10, 2.0, 100.0)) / 3


def workload(sizes, default=32, max_epochs=20):
    return Workload("job", "A40", sizes, default, max_epochs, MAX_WATTS)


class Scripted:
    """A policy that proposes what it was given, in order of the runs."""

    def __init__(self, *proposals):
        self.proposals, self.seen = proposals, []

    def propose(self, problem, runs, seed):
        self.seen.append(list(runs))
        proposal = self.proposals[min(len(runs), len(self.proposals) - 1)]
        return proposal if isinstance(proposal, BatchProposal) else BatchProposal(proposal, reason="it is its turn")


def replayed(policy, sizes, recurrences=1, seed=0, **arguments):
    return replay([workload(sizes)], Contestant("x", policy), seed, recurrences=recurrences, **arguments)


def test_a_sizes_first_run_searches_its_limit_and_later_ones_use_it():
    """Rule 3: the first epoch costs the mean over all limits."""
    result = replayed(DefaultBatchSize(), {32: size([3])}, recurrences=2)
    first, second = result.runs
    assert (first.limit_watts, second.limit_watts) == (200, 200)
    assert first.charged_cost == pytest.approx(MEAN + 2 * BEST)
    assert second.charged_cost == pytest.approx(3 * BEST)


def test_the_limit_search_is_no_part_of_the_policys_costs():
    (only,) = replayed(DefaultBatchSize(), {32: size([3])}).runs
    assert only.run.cost == pytest.approx(3 * BEST)


def test_a_run_draws_each_recorded_training_of_its_size():
    """Rule 4."""
    result = replayed(DefaultBatchSize(), {32: size([3, 5, 9])}, recurrences=60)
    drawn = [one.run.epochs for one in result.runs]
    assert set(drawn) == {3.0, 5.0, 9.0}
    assert min(map(drawn.count, set(drawn))) > 8


def test_the_luck_of_a_recurrence_is_the_same_for_all_policies():
    sizes = {16: size(range(1, 11)), 32: size(range(1, 11))}
    one = replayed(DefaultBatchSize(), sizes, recurrences=20, seed=5)
    other = replayed(Scripted(16), sizes, recurrences=20, seed=5)
    assert [run.run.epochs for run in one.runs] == [run.run.epochs for run in other.runs]


def test_another_seed_is_another_luck():
    sizes = {32: size(range(1, 11))}
    assert replayed(DefaultBatchSize(), sizes, 20, 1).regrets() != replayed(DefaultBatchSize(), sizes, 20, 2).regrets()


@pytest.mark.parametrize(("bound", "epochs"), [(3.0, 3), (2.999, 2), (4.5, 4), (100.0, 20), (0.5, 0)])
def test_a_run_stops_after_the_last_epoch_that_its_bound_can_pay(bound, epochs):
    """Rule 5: floor(bound / epoch cost), at most max_epochs. It costs what it used."""
    script = Scripted(BatchProposal(16, bound * BEST, "it is explored"), 32)
    first = replayed(script, {16: size([30]), 32: size([3])}).runs[0]
    assert (first.run.outcome, first.run.epochs) == ("stopped", epochs)
    assert first.run.cost == pytest.approx(epochs * BEST)
    assert first.charged_cost == pytest.approx(MEAN + (epochs - 1) * BEST if epochs else 0.0)


def test_a_run_that_reaches_the_target_in_its_last_epoch_counts():
    script = Scripted(BatchProposal(16, 3 * BEST, "it is explored"))
    assert replayed(script, {16: size([3]), 32: size([3])}).runs[0].run.outcome == "reached"


def test_a_recurrence_repeats_until_the_target_is_reached_and_pays_for_all():
    """Rule 6."""
    result = replayed(Scripted(16, 16, 32), {16: size([None]), 32: size([4])}, recurrences=1)
    assert [one.run.outcome for one in result.runs] == ["stopped", "stopped", "reached"]
    assert {one.recurrence for one in result.runs} == {0}
    spent = 2 * MEAN + (19 + 20 + 3) * BEST
    assert result.regrets() == [pytest.approx(spent / (4 * BEST) - 1)]


def test_a_recurrence_is_given_up_after_twenty_tries():
    result = replayed(Scripted(16), {16: size([None]), 32: size([4])}, recurrences=2)
    assert [one.recurrence for one in result.runs] == [0] * 20 + [1] * 20


def test_the_unit_of_regret_is_the_best_size_trained_until_success():
    sizes = {16: size([4, None]), 32: size([10])}
    assert workload(sizes).least_cost == pytest.approx(10 * BEST)
    assert workload({**sizes, 16: size([4, 4, None, None])}).least_cost == pytest.approx(10 * BEST)


class TestThePublishedPolicy:
    """Rules 5 to 7."""

    def order(self, sizes, recurrences, default=32, rounds=2):
        job = Workload("job", "A40", sizes, default, 20, MAX_WATTS)
        runs = replay([job], Contestant("x", PublishedBatchSize(rounds)), 0, recurrences=recurrences).runs
        return [one.run.batch_size for one in runs]

    def test_it_explores_downwards_then_upwards_up_to_the_first_failure(self):
        sizes = {4: size([2]), 8: size([None]), 16: size([3]), 32: size([4]), 64: size([5]), 128: size([None])}
        assert self.order(sizes, 4)[:5] == [32, 16, 8, 64, 128]

    def test_the_second_round_begins_at_the_best_and_leaves_out_what_failed(self):
        sizes = {4: size([2]), 8: size([None]), 16: size([3]), 32: size([4]), 64: size([5]), 128: size([None])}
        assert self.order(sizes, 8)[5:8] == [16, 32, 64]

    def test_one_round_is_followed_by_thompson_sampling(self):
        sizes = {16: size([3]), 32: size([4]), 64: size([19])}
        order = self.order(sizes, 60, rounds=1)
        assert order[:3] == [32, 16, 64]
        assert order[4:].count(16) > 50

    def test_a_run_is_stopped_at_twice_the_lowest_cost_of_a_recurrence(self):
        sizes = {16: size([9]), 32: size([4]), 64: size([9])}
        runs = replayed(PublishedBatchSize(), sizes, recurrences=2).runs
        assert [(one.run.batch_size, one.run.outcome, one.run.epochs) for one in runs[:2]] == [
            (32, "reached", 4),
            (16, "stopped", 8),
        ]

    def test_a_failed_try_raises_its_recurrences_cost_instead_of_lowering_the_bound(self):
        sizes = {16: size([9]), 32: size([4]), 64: size([6])}
        runs = replayed(PublishedBatchSize(), sizes, recurrences=3).runs
        assert [(one.recurrence, one.run.batch_size) for one in runs[:3]] == [(0, 32), (1, 16), (1, 64)]
        policy = PublishedBatchSize()
        job = workload(sizes)
        history = [one.run for one in runs[:3]]
        bound = policy.propose(BatchProblem(tuple(sizes), job.default, 20), history, 0).max_cost
        assert bound == pytest.approx(2 * 4 * BEST)

    def test_another_seed_draws_other_sizes(self):
        sizes = {16: size([3, 4, 5]), 32: size([3, 4, 5]), 64: size([3, 4, 5])}
        orders = set()
        for seed in range(5):
            runs = replayed(PublishedBatchSize(), sizes, recurrences=30, seed=seed).runs
            orders.add(tuple(one.run.batch_size for one in runs))
        assert len(orders) == 5


def test_the_grid_tries_all_and_keeps_to_the_cheapest():
    sizes = {8: size([9]), 16: size([3]), 32: size([4]), 64: size([20])}
    order = [one.run.batch_size for one in replayed(GridBatchSize(), sizes, recurrences=8).runs]
    assert order[:5] == [32, 8, 16, 64, 16]
    assert set(order[5:]) == {16}


def test_overlapping_recurrences_see_each_other_as_running():
    sizes = {16: size([3]), 32: size([4])}
    script = Scripted(32)
    submissions = [Submission(0.0), Submission(1.0), Submission(1000.0)]
    replayed(script, sizes, submissions=submissions)
    assert [[run.outcome for run in seen] for seen in script.seen] == [[], ["running"], ["reached", "reached"]]


def test_overlapping_recurrences_do_not_explore_the_same_size():
    sizes = {one: size([4]) for one in (8, 16, 32, 64, 128)}
    submissions = [Submission(0.0), *(Submission(1e6 + number) for number in range(3))]
    for policy in (AdaptiveBatchSize(), PublishedBatchSize(), GridBatchSize()):
        explored = [one.run.batch_size for one in replayed(policy, sizes, submissions=submissions).runs]
        assert len([one for one in explored[1:] if one != 32]) == len({one for one in explored[1:] if one != 32})


def test_the_factor_of_a_submission_scales_its_duration_only():
    sizes = {32: size([4])}
    usual, longer = (
        replayed(DefaultBatchSize(), sizes, submissions=[Submission(0.0, factor)]) for factor in (1.0, 3.0)
    )
    assert longer.runs[0].run.seconds == pytest.approx(3 * usual.runs[0].run.seconds)
    assert longer.regrets() == usual.regrets()


def test_a_workload_that_changes_is_replayed_slice_by_slice():
    slices = [workload({32: size([4])}), workload({32: size([8])})]
    result = replay(slices, Contestant("x", DefaultBatchSize()), 0, recurrences=3)
    assert [one.run.epochs for one in result.runs] == [4, 8, 8]
    assert result.regrets()[-1] == pytest.approx((MEAN - BEST) / (4 * BEST))


def test_measuring_epochs_first_is_charged_and_known():
    class Nosy(DefaultBatchSize):
        def propose(self, problem, runs, seed):
            assert problem.epoch_costs == pytest.approx({16: 2 * BEST, 32: BEST})
            assert problem.known_epochs == {16: math.inf, 32: 4.0}
            return super().propose(problem, runs, seed)

    sizes = {16: size([None], seconds=20.0), 32: size([4])}
    result = replay([workload(sizes)], Contestant("x", Nosy(), 0.1, knows_epochs=True), 0, recurrences=1)
    assert result.measuring_cost == pytest.approx(0.2 * MEAN)
    assert result.regrets() == [pytest.approx((0.2 * MEAN + MEAN + 3 * BEST) / (4 * BEST) - 1)]


def test_runs_on_another_gpu_model_save_trials():
    sizes = {2**k: size([max(round(6 + 2**k / 40), 1)], seconds=4 + 1000 / 2**k) for k in range(3, 11)}
    there = Workload("job", "V100", sizes, 32, 40, MAX_WATTS)
    here = Workload("job", "A40", sizes, 32, 40, MAX_WATTS)
    contestant = Contestant("x", AdaptiveBatchSize(), measured_epoch_fraction=0.1)
    earlier = [one.run for one in replay([there], contestant, 0).runs]
    without, known = (replay([here], contestant, 1, earlier=runs).regrets()[-1] for runs in ([], earlier))
    assert known < 0.7 * without


def test_the_adaptive_policy_beats_the_published_one_where_costs_are_smooth():
    sizes = {2**k: size([max(round(6 + 2**k / 40), 1)], seconds=4 + 1000 / 2**k) for k in range(3, 11)}
    ours, published = (
        replayed(policy, sizes, 50).regrets()[-1] for policy in (AdaptiveBatchSize(), PublishedBatchSize())
    )
    assert ours < 0.7 * published


def drifting(count=60):
    """The critical batch size falls from 1024 to 64, and the best batch size from 512 to 64."""
    slices = []
    for number in range(count):
        critical = 1024 / 2 ** (4 * min(max((number - 20) / 20, 0.0), 1.0))
        sizes = {
            2**k: size(
                [max(round(8 * (1 + 2**k / critical) * factor), 1) for factor in (0.9, 1.0, 1.1)], 2 + 200 / 2**k
            )
            for k in range(4, 12)
        }
        slices.append(Workload("drifting", "A40", sizes, 256, 100, MAX_WATTS))
    return slices


@pytest.mark.long
def test_forgetting_pays_where_the_work_drifts():
    """Over 20 seeds, the regret of 60 recurrences is below two thirds of that without."""
    slices = drifting()

    def mean_regret(half_life_runs):
        contestant = Contestant("x", AdaptiveBatchSize(), half_life_runs=half_life_runs)
        return sum(replay(slices, contestant, seed, recurrences=60).regrets()[-1] for seed in range(20)) / 20

    assert mean_regret(20.0) < 2 / 3 * mean_regret(None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: workload({16: size([3])}), "default is 32; job on A40 was recorded at 16"),
        (lambda: workload({32: size([None])}), "job on A40: no recorded training reaches the target in 20 epochs"),
        (lambda: workload({32: size([21])}), "job on A40: no recorded training reaches the target in 20 epochs"),
        (lambda: replayed(Scripted(17), {32: size([3])}), "x proposes the batch size 17, which is none of the job's"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()
