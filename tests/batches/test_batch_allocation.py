"""Batches chosen while training starts, on simulated GPUs of different models."""

import logging

import pytest
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks import run_ranks
from tests.support.simulated_ranks import SimulatedRank
from tests.support.uneven_training import Regression, loss_of, samples
from zeus_core.batches.pytorch import BatchAllocation, UnevenBatches
from zeus_core.codec import encode
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError, WorldError
from zeus_core.mixed.allocation.device_profile import kept_profile
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import Time
from zeus_core.pytorch import SimulatedBatches

STEPS = 13 * 9  # epochs of 200 samples in global batches of 16; one for each trial, and some more


class Rank(SimulatedRank):
    """A rank of a job with a plain loop."""

    def __init__(self, models, **gpu_arguments):
        torch.distributed.init_process_group("gloo")
        torch.set_num_threads(1)
        network = Regression()
        super().__init__(models, network, **gpu_arguments)
        self.rank = torch.distributed.get_rank()
        self.network = DistributedDataParallel(network)
        self.updates = torch.optim.SGD(self.network.parameters(), 0.01)

    def train(self, uneven, loader, steps):
        """Yields the index of each sample, once a step has ended."""
        done = 0
        while done < steps:
            for *batch, index in loader:
                uneven.weighted(loss_of(self.network, batch)).backward()
                self.updates.step()
                self.updates.zero_grad()
                done += 1
                yield index.tolist()
                if done == steps:
                    return


def dataset(count):
    return torch.utils.data.TensorDataset(*samples(count).tensors, torch.arange(count))


def allocate_rank(models, folder, arguments, workers=0, steps=30, gpu_arguments=None):
    job = Rank(models, **(gpu_arguments or {}))
    allocation = BatchAllocation(16, job.monitor, Time(), folder=folder, steps=2, **arguments)
    original = job.gpu.read_power_limit_watts()
    uneven = UnevenBatches(job.network, allocation)
    loader = uneven.loader(dataset(200), num_workers=workers)
    at_once = allocation.plan is not None
    seen = list(job.train(uneven, loader, steps))
    limit = job.gpu.read_power_limit_watts()
    uneven.close()
    return {
        "plan": None if allocation.plan is None else encode(allocation.plan),
        "at once": at_once,
        "batches": uneven.batches,
        "seen": seen,
        "limits": (original, limit, job.gpu.read_power_limit_watts()),
    }


def test_ranks_agree_on_a_plan_with_which_other_rank_counts_start(tmp_path):
    """Each epoch of 13 global batches holds one trial; workers load ahead."""
    models = ["A100-SXM4-80GB", "V100-SXM2-32GB"]
    arguments = {"limit_fractions": [1.0, 0.7]}
    results = run_ranks(2, allocate_rank, models, tmp_path, arguments, 1, STEPS)
    assert results[0]["plan"] == results[1]["plan"] is not None
    assert not results[0]["at once"]
    assert sum(results[0]["batches"]) == 16
    for rank, result in enumerate(results):
        original, limit, at_the_end = result["limits"]
        assert limit == result["plan"]["ranks"][rank]["setting"]
        assert at_the_end == original
    for begin in range(0, STEPS, 13):
        steps = [step for result in results for step in result["seen"][begin : begin + 13]]
        assert sorted(sample for step in steps for sample in step) == list(range(200))
    assert {kept_profile(tmp_path, f"{model} (simulated)").gpu_model for model in models} == {
        f"{model} (simulated)" for model in models
    }
    restarted = run_ranks(3, allocate_rank, [*models, models[0]], tmp_path, arguments, 0, 3)
    assert all(result["at once"] for result in restarted)
    assert {result["batches"] for result in restarted} == {restarted[0]["batches"]}
    assert sum(restarted[0]["batches"]) == 16


def fall_back_rank(models, arguments, count=200, gpu_arguments=None, has_gpu=True):
    """The warnings and the plan of a rank whose batches cannot be chosen as wished."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("zeus_core.batches.pytorch").addHandler(handler)
    job = Rank(models, **(gpu_arguments or {}))
    monitor = job.monitor if has_gpu or job.rank == 0 else ZeusMonitor(gpus=[], gpu_indices=[], cpu_indices=[])
    allocation = BatchAllocation(monitor=monitor, steps=2, **arguments)
    uneven = UnevenBatches(job.network, allocation)
    seen = list(job.train(uneven, uneven.loader(dataset(count)), STEPS))
    limit = job.gpu.read_power_limit_watts()
    uneven.close()
    return messages, uneven.batches, seen, None if allocation.plan is None else encode(allocation.plan), limit


@pytest.mark.parametrize(
    ("arguments", "others", "message", "batches"),
    [
        ({"global_batch": 3}, {}, "too few to measure two batch sizes on each of 2 ranks: all ranks get", (2, 1)),
        ({"global_batch": 16}, {"has_gpu": False}, "no GPU can be measured on a rank of this job: all", (8, 8)),
        ({"global_batch": 16}, {"count": 120}, "an epoch has 8 steps, too few to measure a batch size", (8, 8)),
        ({"global_batch": 16, "max_batch": 8}, {}, "could not be measured, and all ranks get equal ones", (8, 8)),
    ],
    ids=["small batch", "no GPU", "short epoch", "one size alone"],
)
def test_all_ranks_fall_back_to_equal_batches(arguments, others, message, batches):
    results = run_ranks(2, fall_back_rank, ["V100-SXM2-32GB", "A40"], arguments, *others_of(**others))
    for messages, chosen, seen, plan, limit in results:
        assert any(message in text for text in messages), messages
        assert chosen == batches
        assert plan is None
        assert limit == 300.0
        assert len(seen) == STEPS


def disturbed_rank(is_disturbed):
    """A training with an evaluation of 10 s after some steps."""
    job = Rank(["A100-SXM4-80GB", "V100-SXM2-32GB"])
    allocation = BatchAllocation(16, job.monitor, Time(), steps=2)
    uneven = UnevenBatches(job.network, allocation)
    for step, _ in enumerate(job.train(uneven, uneven.loader(dataset(16 * 40)), 40 * 8)):
        if is_disturbed(step):
            job.gpu.execute(Work(10.0, 300.0))
    windows = [] if allocation.profile is None else allocation.profile.points
    uneven.close()
    return allocation.plan and encode(allocation.plan), [window.watts for window in windows]


@pytest.mark.long
def test_trials_that_an_evaluation_gets_into_are_measured_again():
    calm = run_ranks(2, disturbed_rank, lambda step: False)
    for (plan, watts), (calm_plan, calm_watts) in zip(
        run_ranks(2, disturbed_rank, lambda step: step in (20, 50)), calm, strict=True
    ):
        assert [share["batch"] for share in plan["ranks"]] == [share["batch"] for share in calm_plan["ranks"]]
        assert watts == pytest.approx(calm_watts, rel=0.1)
    for plan, _ in run_ranks(2, disturbed_rank, lambda step: step % 10 == 0):
        assert plan is None


def others_of(count=200, gpu_arguments=None, has_gpu=True):
    return count, gpu_arguments, has_gpu


def test_ranks_without_the_right_to_set_limits_get_batches_alone():
    arguments = {"global_batch": 16, "limit_fractions": [1.0, 0.8]}
    results = run_ranks(2, fall_back_rank, ["V100-SXM2-32GB", "A40"], arguments, 200, {"grants_control": False})
    for messages, chosen, _, plan, limit in results:
        assert any("this rank cannot set power limits, and gets a batch alone" in text for text in messages)
        assert sum(chosen) == 16
        assert chosen == tuple(share["batch"] for share in plan["ranks"]) != (8, 8)
        assert limit == 300.0


@pytest.mark.parametrize(
    ("other", "sample_gib", "largest"), [("A40", 2.0, 9), ("V100-SXM2-32GB", 2.45, None)], ids=["one more", "none more"]
)
def test_a_batch_that_would_be_out_of_memory_is_not_tried(other, sample_gib, largest):
    """On a V100, of 32 GiB, a trial of 12 samples would be."""
    batches = SimulatedBatches(32, half_samples=4.0, model_gib=12.0, sample_gib=sample_gib)
    gpu_arguments = {"batches": batches}
    results = run_ranks(2, fall_back_rank, ["V100-SXM2-32GB", other], {"global_batch": 16}, 200, gpu_arguments)
    for messages, chosen, seen, plan, _ in results:
        assert len(seen) == STEPS
        sizes = {len(step) for step in results[0][2]}
        assert max(sizes) == (8 if largest is None else largest)
        if largest is None:
            assert any("the memory of rank 0 holds 8 samples" in text for text in messages), messages
            assert (chosen, plan) == ((8, 8), None)
        else:
            assert min(sizes) < 8
            assert chosen == tuple(share["batch"] for share in plan["ranks"])


def sharded():
    network = Regression()
    torch.distributed.fsdp.fully_shard(network)
    return network


def refusals():
    job = Rank(["A40", "A40"])
    gpus = [SimulatedGpu(find_preset("A40"), index) for index in range(2)]
    both = ZeusMonitor(gpu_indices=[0, 1], gpus=gpus, cpu_indices=[])
    cases = [
        (
            Regression(),
            BatchAllocation(16, job.monitor),
            "whose gradients nothing averages over the 2 ranks",
        ),
        (sharded(), BatchAllocation(16, job.monitor), "it is not known when a rank has computed its gradients"),
        (job.network, BatchAllocation(16, both), "it must measure that of this rank: gpu_indices=[local_rank]"),
        (job.network, BatchAllocation(16 + 2 * job.rank, job.monitor), "the ranks have different arguments"),
        (job.network, BatchAllocation(16, job.monitor, max_batch=7), "the ranks hold 14 at most"),
    ]
    for network, allocation, expected in cases:
        with pytest.raises((UsageError, WorldError)) as error:
            UnevenBatches(network, allocation)
        assert expected in str(error.value)
    return True


def test_what_cannot_be_measured_is_refused_on_all_ranks():
    assert run_ranks(2, refusals) == [True, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch": 0}, "global_batch is 0"),
        ({"limit_fractions": [1.2]}, r"limit_fractions\[0\] is 1.2; it must be a fraction of the original limit"),
        ({"limit_fractions": []}, r"limit_fractions is \[\]; it must be a list of fractions"),
        ({"steps": 0}, "steps is 0; it must be a whole number, at least 1"),
        ({"objective": 3}, "objective is 3; it must be an Objective"),
        ({"monitor": 3}, "monitor is 3; it must be"),
    ],
)
def test_wrong_arguments(arguments, message, monitor):
    with pytest.raises(UsageError, match=message):
        BatchAllocation(**{"global_batch": 16, "monitor": monitor, **arguments})


def measured_rank(models, global_batch, is_equal, max_batch=None, steps=15):
    """Step time and energy per step of all GPUs, once the batches have been chosen."""
    job = Rank(models)
    size = global_batch // len(models)
    allocation = BatchAllocation(global_batch, job.monitor, limit_fractions=[1.0, 0.85], max_batch=max_batch)
    uneven = UnevenBatches(job.network, [size] * len(models) if is_equal else allocation)
    training = job.train(uneven, uneven.loader(dataset(global_batch * 200)), 400)
    next(training)
    while not is_equal and allocation.plan is None:
        next(training)
    next(training)  # the ranks begin to wait for each other
    joules, begin = job.joules_of_all(), job.time_source.now()
    for _ in range(steps):
        next(training)
    joules = job.joules_of_all() - joules
    seconds = job.time_source.now() - begin
    uneven.close()
    return seconds / steps, joules / steps, None if is_equal else allocation.plan


@pytest.mark.parametrize(
    ("models", "max_batch", "quicker"),
    [
        (["A100-SXM4-80GB", "V100-SXM2-32GB"], None, 1.4),
        # The A100 would do most: 26 of 64 samples, which is more than the 24 that are tried in unknown memory.
        pytest.param(["A100-SXM4-80GB", *["V100-SXM2-32GB"] * 2, "A40"], 32, 1.3, marks=pytest.mark.long),
    ],
    ids=["2 ranks", "4 ranks"],
)
def test_a_training_has_the_speed_and_energy_of_the_plan(models, max_batch, quicker):
    global_batch = 16 * len(models)
    (equal_seconds, equal_joules, _), *_ = run_ranks(len(models), measured_rank, models, global_batch, True)
    (seconds, joules, plan), *_ = run_ranks(len(models), measured_rank, models, global_batch, False, max_batch)
    print(f"equal {equal_seconds:.4f} s {equal_joules:.1f} J; measured {seconds:.4f} s {joules:.1f} J; plan {plan}")
    assert seconds == pytest.approx(plan.step_seconds, rel=0.03)
    assert joules == pytest.approx(plan.energy_joules, rel=0.03)
    assert equal_seconds / seconds >= quicker, "samples per second"
    assert joules <= equal_joules
