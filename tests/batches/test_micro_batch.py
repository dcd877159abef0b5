"""The choice of a micro-batch by probes on simulated GPUs, without a framework."""

import json
import random

import pytest

from zeus_core.batches import MicroBatchOptimizer
from zeus_core.batches.micro_batch_search import MicroBatchSearch, divisors
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import NoMonitor
from zeus_core.optimizer.power_limit import (
    Energy,
    EnergyWithin,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    Time,
    ZeusCost,
)
from zeus_core.search import Trial
from zeus_core.testing import ThreadWorld, VirtualTime


class Passes:
    """The passes of a training on a simulated GPU, for up to so many samples."""

    def __init__(self, gpu, half_samples=8.0, largest=10**6, growth=0.0):
        self.gpu, self.half_samples, self.largest, self.growth = gpu, half_samples, largest, growth
        self.sizes = []

    def __call__(self, size):
        if size not in self.sizes:
            self.sizes.append(size)
        if size > self.largest:
            raise MemoryError
        self.gpu.execute(self.work(size))

    def work(self, size):
        seconds = 0.01 * (size + self.half_samples) * (1 + self.growth * size)
        return Work(seconds, 350.0, size / (size + self.half_samples))

    def joules_per_sample(self, size):
        point = self.gpu.preset.physics.operating_point(self.work(size), self.gpu.read_power_limit_watts())
        return point.energy_joules / size

    def attained(self, batch_size, original, chosen):
        """The share of the attainable saving."""
        joules = {size: self.joules_per_sample(size) for size in divisors(batch_size) if size <= self.largest}
        attainable = joules[original] - min(joules.values())
        return (joules[original] - joules[chosen]) / attainable if attainable > 0 else 1.0


def gpu_of(model, seed=None):
    noise = None if seed is None else SimulatedNoise(seed=seed)
    return SimulatedGpu(find_preset(model), time_source=VirtualTime(), noise=noise)


def monitor_of(gpu):
    return ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=gpu._time_source)


def optimizer_of(gpu, **arguments):
    return MicroBatchOptimizer(monitor_of(gpu), **arguments)


@pytest.mark.parametrize("model", ["A100-SXM4-80GB", "V100-PCIE-32GB"])
@pytest.mark.parametrize(
    ("batch_size", "original", "facts"),
    [
        (64, 8, {}),
        (64, 8, {"largest": 16}),
        (64, 64, {"largest": 31}),  # what was configured does not fit
        (512, 4, {"half_samples": 40.0, "largest": 200}),
        (720, 6, {"largest": 100}),
        (96, 96, {"half_samples": 2.0, "growth": 0.01}),  # large batches are dearer
        (1, 1, {}),
    ],
)
def test_most_of_the_attainable_saving_is_found_in_six_probes(model, batch_size, original, facts):
    for seed in range(5):
        passes = Passes(gpu_of(model, seed), **facts)
        optimizer = optimizer_of(passes.gpu)
        chosen = optimizer.choose(batch_size, original, passes)
        assert len(passes.sizes) <= 6
        assert chosen == optimizer.chosen <= passes.largest
        if original <= passes.largest:
            assert passes.attained(batch_size, original, chosen) >= 0.95


def test_a_size_no_better_than_the_original_is_not_chosen(caplog):
    passes = Passes(gpu_of("A100", seed=0), half_samples=0.0)
    optimizer = optimizer_of(passes.gpu)
    assert optimizer.choose(64, 16, passes) == 16
    assert optimizer.result()["micro-batch"].startswith("16 x 4 as it was, the best of 3 sizes by Energy()")


def test_a_size_out_of_memory_and_larger_ones_are_never_tried_again(tmp_path):
    first = Passes(gpu_of("A100"), largest=16)
    path = tmp_path / "profile.json"
    optimizer_of(first.gpu, profile_path=path).choose(64, 8, first)
    assert 32 in first.sizes
    assert 64 not in first.sizes
    (profile,) = json.loads(path.read_text())["profiles"]
    assert profile["out_of_memory"] == [32]

    again = Passes(gpu_of("A100"), largest=16)
    optimizer = optimizer_of(again.gpu, profile_path=path)
    assert optimizer.choose(64, 8, again) == 16
    assert again.sizes == []
    assert optimizer.out_of_memory == {32}


def test_a_size_out_of_memory_in_training_is_not_chosen_again(tmp_path):
    passes, path = Passes(gpu_of("A100")), tmp_path / "profile.json"
    optimizer = optimizer_of(passes.gpu, profile_path=path)
    assert optimizer.choose(64, 8, passes) == 64
    optimizer.tell_out_of_memory(64)
    assert optimizer.choose(64, 8, passes) == 32
    assert optimizer_of(passes.gpu, profile_path=path).choose(64, 8, passes) == 32


def test_other_work_is_probed_anew(tmp_path):
    passes, path = Passes(gpu_of("A100")), tmp_path / "profile.json"
    optimizer_of(passes.gpu, profile_path=path).choose(64, 8, passes, work={"parameters": 1})
    passes.sizes.clear()
    optimizer_of(passes.gpu, profile_path=path).choose(64, 8, passes, work={"parameters": 2})
    assert passes.sizes


def test_memory_of_a_failed_pass_is_released_after_its_error_is_gone():
    import gc
    import weakref

    class Tensor:
        pass

    gpu, kept, released = gpu_of("A100"), [], []

    def run(size):
        tensor = Tensor()
        if size > 8:
            kept.append(weakref.ref(tensor))
            raise MemoryError
        gpu.execute(Work(0.01, 300.0))

    gc.disable()
    try:
        optimizer_of(gpu).choose(64, 8, run, release=lambda: released.append([one() for one in kept]))
    finally:
        gc.enable()
    assert released
    assert all(one is None for tensors in released for one in tensors)


def test_nothing_fits(caplog):
    passes = Passes(gpu_of("A100"), largest=0)
    optimizer = optimizer_of(passes.gpu)
    assert optimizer.choose(8, 4, passes) == 4
    assert "no micro-batch fits into memory" in caplog.text
    assert min(passes.sizes) == 1


def test_an_error_of_the_passes_leaves_the_original_size(caplog):
    def run(size):
        raise ValueError("shapes do not fit")

    optimizer = optimizer_of(gpu_of("A100"))
    assert optimizer.choose(8, 4, run) == 4
    assert "shapes do not fit" in caplog.text
    assert "shapes do not fit" in optimizer.result()["micro-batch"]


def test_without_a_gpu_nothing_is_probed(caplog):
    optimizer = MicroBatchOptimizer(NoMonitor("none"))
    assert optimizer.choose(8, 4, pytest.fail) == 4
    assert "no GPU is measured" in caplog.text


def test_another_objective_is_met():
    """Larger batches take less time here but more energy per sample."""
    gpu = gpu_of("A100")

    def run(size):
        gpu.execute(Work(0.01 * (size + 8.0), 200.0 + 2 * size))

    assert optimizer_of(gpu).choose(64, 8, run) < 64
    assert optimizer_of(gpu, optimum_selector=Time()).choose(64, 8, run) == 64
    for slowdown in (1.05, 4.0):  # 8 is the smallest that keeps the first; the second allows 1, which costs less than 8
        within = optimizer_of(gpu, optimum_selector=EnergyWithin(slowdown))
        within.choose(64, 8, run)
        seconds = {size: trial.seconds_per_step for size, trial in within.trials.items()}
        assert seconds[within.chosen] <= slowdown * seconds[8]
    cost = ZeusCost(eta_knob=0.0)  # of the highest power of the GPU, which nobody has to state
    assert optimizer_of(gpu, optimum_selector=cost).choose(64, 8, run) == 64


def test_ranks_agree_if_one_of_them_is_out_of_memory():
    def rank_main(world):
        passes = Passes(gpu_of("A100", seed=world.rank), largest=16 if world.rank == 1 else 64)
        chosen = optimizer_of(passes.gpu).choose(64, 8, passes, world=world)
        return chosen, passes.sizes

    assert ThreadWorld.run(2, rank_main) == [(16, [8, 32, 16])] * 2


def test_an_error_on_one_rank_leaves_the_original_size_on_all():
    def rank_main(world):
        passes = Passes(gpu_of("A100"))

        def run(size):
            if world.rank == 1 and size > 8:
                raise ValueError("broken")
            passes(size)

        return optimizer_of(passes.gpu).choose(64, 8, run, world=world)

    assert ThreadWorld.run(2, rank_main) == [8, 8]


def test_ranks_with_different_batches_keep_theirs(caplog):
    def rank_main(world):
        passes = Passes(gpu_of("A100"))
        return optimizer_of(passes.gpu).choose(64, 8 * (1 + world.rank), passes, world=world)

    assert ThreadWorld.run(2, rank_main) == [8, 16]
    assert "the ranks have different batches" in caplog.text


def test_profile_is_shared_with_a_search_for_a_power_limit(tmp_path):
    passes, path = Passes(gpu_of("A100")), tmp_path / "profile.json"
    monitor = monitor_of(passes.gpu)
    chosen = MicroBatchOptimizer(monitor, profile_path=path).choose(64, 8, passes)
    with GlobalPowerLimitOptimizer(monitor, profile_path=path, profile_steps=3, quiet=True) as limits:
        limits.on_train_begin(max_steps=200)
        for _ in range(100):
            limits.on_step_begin()
            passes(chosen)
            limits.on_step_end()
    profiles = json.loads(path.read_text())["profiles"]
    assert [profile["conditions"]["knob"] for profile in profiles] == ["micro-batch", "power limit"]
    passes.sizes.clear()
    assert MicroBatchOptimizer(monitor, profile_path=path).choose(64, 8, passes) == chosen
    assert passes.sizes == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda o: o.choose(64, 7, print),
            "micro_batch is 7, which does not divide the 64 .* one of 1, 2",
        ),
        (lambda o: o.choose(0, 1, print), "batch_size is 0"),
        (lambda o: o.choose(64, "8", print), "micro_batch is '8'"),
        (lambda o: o.choose(64, 8, print, world=3), "world is 3"),
        (lambda o: o.choose(64, 8, print, work=3), "work is 3"),
        (lambda o: MicroBatchOptimizer(3), "monitor is 3"),
        (lambda o: MicroBatchOptimizer(optimum_selector=Time), "optimum_selector|selector is"),
        (lambda o: MicroBatchOptimizer(optimum_selector=MaxSlowdownConstraint()), "pass Energy"),
        (lambda o: MicroBatchOptimizer(max_probes=0), "max_probes is 0"),
        (lambda o: MicroBatchOptimizer(probe_seconds=0), "probe_seconds is 0"),
        (lambda o: MicroBatchOptimizer(profile_path=3), "profile_path is 3"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(UsageError, match=message):
        call(optimizer_of(gpu_of("A100")))


def test_the_search_finds_the_best_size_of_random_curves():
    """Costs of a + b / size + c * size, and a memory limit: 95 % of what can be saved, if that is a percent."""
    draw = random.Random(0)
    for _ in range(300):
        batch_size = draw.choice([16, 48, 60, 64, 96, 128, 256, 720, 1024])
        original = draw.choice(divisors(batch_size))
        half, growth = 10 ** draw.uniform(-1, 2.3), draw.choice([0.0, 10 ** draw.uniform(-5, -2)])
        limit = draw.choice([batch_size, draw.uniform(original, 2 * batch_size)])
        costs = {size: 1 + half / size + growth * size for size in divisors(batch_size) if size <= limit}
        search, asked = MicroBatchSearch(divisors(batch_size), original, Energy()), []
        while len(asked) < 6 and (size := search.ask()) is not None:
            assert size not in asked
            asked.append(size)
            if size > limit:
                search.tell_out_of_memory(size)
            else:
                search.tell(Trial(size, 100, Measurement.from_energies(1.0, {0: costs[size]})))
        attainable = costs[original] - min(costs.values())
        if attainable > 0.02 * costs[original]:
            assert costs[original] - costs[search.choice] >= 0.95 * attainable, (batch_size, original, costs, asked)
