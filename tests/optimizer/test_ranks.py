"""Several real processes over gloo that search together, on simulated GPUs and on devices they share."""

import logging
import multiprocessing
import os
import random
import signal
import time
import traceback

import pytest
import torch.distributed

from tests.contracts.world import WorldContract
from tests.nvml_driver import DeviceSpec
from tests.support.sweep import sweep
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import DriverFaultError, WorldError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import Energy, MaxSlowdownConstraint, OptimumSelector
from zeus_core.pytorch import torch_world
from zeus_core.testing import FaultyGpu, VirtualTime

WORKS = [Work(0.9, 289.2, 0.889, 0.784), Work(1.5, 250.0, 0.9, 0.7)]
FOUND_WATTS = 250.0
LIMITS = [250, 175, 100]
STEPS = 5 * (1 + 3) + 1  # of a whole search, until training goes on at the choice
QUICK = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 3, "pl_step": 75}
H200 = DeviceSpec(lowest_limit_watts=200.0, power_limit_watts=450.0)


def run_ranks(count, folder, rank_main, *arguments):
    """Run a function in forked processes that form a torch world; returns what it returned, by rank."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    processes = [
        context.Process(target=_enter_rank, args=(rank, count, folder, answers, rank_main, arguments))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    by_rank = dict(answers.get() for _ in processes)
    for process in processes:
        process.join(240)
        assert process.exitcode == 0, by_rank
    return [by_rank[rank] for rank in range(count)]


def _enter_rank(rank, count, folder, answers, rank_main, arguments):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count))
    said = Said()
    logging.getLogger("zeus_core.optimizer").addHandler(said)
    try:
        answers.put((rank, (rank_main(rank, *arguments), said.messages)))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
        os._exit(1)
    os._exit(0)  # a process group that has lost a rank cannot be taken down in order


class Said(logging.Handler):
    """Return the messages of the search."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def simulated(rank):
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A40"), rank, time_source=time_source, power_limit_watts=FOUND_WATTS)
    faulty = FaultyGpu(gpu)
    return gpu, faulty, ZeusMonitor(gpus=[faulty], time_source=time_source)


def outcome(optimizer):
    return optimizer.phase, optimizer.chosen_limit_watts, optimizer.trials, optimizer.confirmation


def agreed(answers):
    """Return the state that is the same on all ranks."""
    outcomes = [what for what, _ in answers]
    assert all(what == outcomes[0] for what in outcomes)
    return outcomes[0]


def enter_world(rank, rank_main):
    return rank_main(torch_world(timeout_seconds=6.0))


class TestTorchWorld(WorldContract):
    @pytest.fixture
    def run_ranks(self, tmp_path):
        return lambda rank_main: [answer for answer, _ in run_ranks(3, tmp_path, enter_world, rank_main)]


class Whim(OptimumSelector):
    def select(self, measurements):
        return random.Random(os.getpid()).choice([measurement.power_limit for measurement in measurements])


def search_on_simulated_gpus(rank, selector):
    gpu, _, monitor = simulated(rank)
    optimizer = sweep(monitor, selector, world=torch_world(), **QUICK)
    for _ in range(STEPS):
        optimizer.on_step_begin()
        gpu.execute(WORKS[rank])
        optimizer.on_step_end()
    assert gpu.read_power_limit_watts() == optimizer.chosen_limit_watts
    found = outcome(optimizer)
    optimizer.on_train_end()
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    return found


@pytest.mark.parametrize("selector", [None, Whim()], ids=["default", "moody"])
def test_two_gpus_of_which_one_is_slower(tmp_path, selector):
    answers = run_ranks(2, tmp_path, search_on_simulated_gpus, selector)
    phase, chosen_watts, trials, _ = agreed(answers)
    assert phase is Phase.DONE
    assert chosen_watts in LIMITS
    assert [trial.setting for trial in trials] == LIMITS
    for trial in trials:
        points = [find_preset("A40").physics.operating_point(work, trial.setting) for work in WORKS]
        assert trial.seconds_per_step == pytest.approx(max(point.seconds for point in points), rel=1e-9)
        uncertainty = trial.measurement.total_uncertainty_joules / trial.steps
        assert trial.joules_per_step == pytest.approx(sum(point.energy_joules for point in points), abs=uncertainty)


def search_on_a_driver(rank, seconds):
    optimizer = sweep(ZeusMonitor(), Energy(), world=torch_world(), **{**QUICK, "pl_step": 125})
    for _ in range(STEPS):
        optimizer.on_step_begin()
        time.sleep(seconds)
        optimizer.on_step_end()
    found = optimizer.baseline_limit_watts, optimizer.optimum_selector, *outcome(optimizer)
    optimizer.on_train_end()
    return found[0], *found[2:]


def limits_set(driver, index):
    return [call.argument / 1000 for call in driver.calls("nvmlDeviceSetPowerManagementLimit", device_index=index)]


@pytest.mark.real_time
def test_two_ranks_sharing_a_gpu_find_its_limit_before_either_changes_it(make_driver, tmp_path):
    driver = make_driver(H200)
    driver[0].set_load(600.0)
    answers = run_ranks(2, tmp_path, search_on_a_driver, 0.05)
    baseline_watts, phase, chosen_watts, trials, _ = agreed(answers)
    assert (baseline_watts, phase) == (450, Phase.DONE)
    assert [trial.setting for trial in trials] == [450, 325, 200]
    assert chosen_watts == 200
    for trial in trials:
        (energy,) = trial.measurement.gpu_energy.values()
        uncertainty = trial.measurement.total_uncertainty_joules
        assert energy == pytest.approx(trial.setting * trial.measurement.time, rel=0.1, abs=uncertainty)
    assert driver[0].power_limit_watts == 450
    assert max(limits_set(driver, 0)) == 450


def test_where_one_rank_has_no_rights_both_observe(make_driver, tmp_path):
    driver = make_driver(H200, H200)
    driver[1].deny_control()
    answers = run_ranks(2, tmp_path, search_on_a_driver, 0.01)
    baseline_watts, phase, chosen_watts, trials, _ = agreed(answers)
    assert (baseline_watts, phase, chosen_watts) == (450, Phase.DONE, 450)
    assert [trial.setting for trial in trials] == [450]
    assert set(limits_set(driver, 0)) <= {450.0}
    ((first,), (second,)) = (said for _, said in answers)
    assert f"sudo nvidia-smi -i {driver[1].uuid}" in second
    assert "not changed: rank 1: " in first


def search_with_a_fault(rank, call, error, healthy_steps):
    gpu, faulty, monitor = simulated(rank)
    optimizer = sweep(monitor, world=torch_world(), **QUICK)
    for step in range(STEPS):
        if rank == 1 and step == healthy_steps:
            faulty.fail(call, error)
        optimizer.on_step_begin()
        gpu.execute(WORKS[0])
        optimizer.on_step_end()
    faulty.heal()
    optimizer.on_train_end()
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    return outcome(optimizer)


@pytest.mark.parametrize(
    ("call", "error", "healthy_steps"),
    [("set_power_limit", DriverFaultError("broken"), 3), ("read_energy_counter_joules", RuntimeError("broken"), 6)],
    ids=["apply", "measure"],
)
def test_a_fault_on_one_rank_stops_both(tmp_path, call, error, healthy_steps):
    answers = run_ranks(2, tmp_path, search_with_a_fault, call, error, healthy_steps)
    phase, chosen_watts, trials, _ = agreed(answers)
    assert (phase, chosen_watts) == (Phase.OFF, None)
    assert [trial.setting for trial in trials] == [250]
    (first, second) = (
        [message for message in said if "is off for the rest of this run" in message] for _, said in answers
    )
    assert len(first) == len(second) == 1
    assert "rank 1: " in first[0]
    assert "broken" in first[0]
    assert "rank 1" not in second[0]


def search_until_one_dies(rank, end):
    gpu, _, monitor = simulated(rank)
    world = torch_world(timeout_seconds=6.0)
    optimizer = sweep(monitor, world=world, **QUICK)
    for step in range(STEPS):
        if rank == 1 and step == 6:
            assert gpu.read_power_limit_watts() < FOUND_WATTS
            end(optimizer)
            return None
        optimizer.on_step_begin()
        gpu.execute(WORKS[0])
        optimizer.on_step_end()
    assert optimizer.phase is Phase.OFF
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    with pytest.raises(WorldError, match="did not reach each other"):
        world.gather(None)
    return optimizer.trials


def die(optimizer):
    """The process ends when its rank returns."""


def hang(optimizer):
    time.sleep(13.0)


@pytest.mark.parametrize("end", [die, hang])
def test_ranks_that_are_left_put_their_limits_back(tmp_path, end):
    answers = run_ranks(3, tmp_path, search_until_one_dies, end)
    for rank in (0, 2):
        trials, said = answers[rank]
        assert [trial.setting for trial in trials] == [250]
        assert len([message for message in said if "is off for the rest of this run" in message]) == 1


# The search that is on by default

RANKS, RUN_STEPS = 4, 240
SLOW_RANK, SLOW_WORK = 2, Work(0.6, 289.2, 0.889, 0.784)


class CountedWorld:
    """Count the collectives that this rank has reached."""

    def __init__(self, world):
        self._world, self.size, self.rank, self.collectives = world, world.size, world.rank, 0

    def gather(self, value):
        self.collectives += 1
        return self._world.gather(value)


def search_by_default(rank, knob, profile_path=None, killed_after=None):
    """Return the setting at each step, and the collectives reached by then; the blocks; and those known before."""
    gpu, _, monitor = simulated(rank)
    world = CountedWorld(torch_world(timeout_seconds=240.0))
    optimizer = GlobalPowerLimitOptimizer(
        monitor, MaxSlowdownConstraint(1.1), knob=knob, world=world, profile_path=profile_path, max_steps=RUN_STEPS,
        quiet=True,
    )  # fmt: skip
    optimizer.on_train_begin()
    known = [block.trial for block in optimizer._search.measured.blocks]
    steps = []
    for _ in range(RUN_STEPS):
        optimizer.on_step_begin()
        gpu.execute(SLOW_WORK if rank == SLOW_RANK else WORKS[0])
        optimizer.on_step_end()
        steps.append(
            (optimizer.power_limit_watts, optimizer.sm_clock_mhz, gpu.read_power_limit_watts(), world.collectives)
        )
        if killed_after is not None and len(optimizer._search.measured.blocks) == killed_after:
            torch.distributed.barrier()  # the ranks are killed together
            os.kill(os.getpid(), signal.SIGKILL)
    phase, blocks = optimizer.phase, [block.trial for block in optimizer._search.measured.blocks]
    optimizer.on_train_end()
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    return phase, steps, known, blocks


@pytest.mark.long  # with threads for ranks: test_whole_run
@pytest.mark.parametrize("knob", ["auto", "power limit"])
def test_four_ranks_hold_equal_settings_and_reach_the_same_collectives_every_step(tmp_path, knob):
    phase, steps, _, _ = agreed(run_ranks(RANKS, tmp_path, search_by_default, knob))
    assert phase is Phase.DONE
    assert len({step[:2] for step in steps}) > 1, "something was tried"


@pytest.mark.long  # on one rank: test_whole_run
@pytest.mark.parametrize("killed_after", [1, 3])
def test_no_finished_block_is_measured_again_after_all_ranks_were_killed(tmp_path, killed_after):
    profile = tmp_path / "profile.json"
    folders = [tmp_path / name for name in ("killed", "resumed", "whole")]
    for folder in folders:
        folder.mkdir()
    assert kill_ranks(folders[0], search_by_default, "power limit", profile, killed_after) == [-signal.SIGKILL] * 2
    phase, _, known, blocks = agreed(run_ranks(2, folders[1], search_by_default, "power limit", profile))
    assert phase is Phase.DONE
    assert len(known) == killed_after
    assert blocks[:killed_after] == known
    whole = agreed(run_ranks(2, folders[2], search_by_default, "power limit"))[3]
    assert steps_at_the_original(blocks) <= steps_at_the_original(whole) + 5, "the shortest block has 5 steps"


def kill_ranks(folder, rank_main, *arguments):
    """Return how the two ranks ended."""
    context = multiprocessing.get_context("fork")
    more = (context.SimpleQueue(), rank_main, arguments)
    processes = [context.Process(target=_enter_rank, args=(rank, 2, folder, *more)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    return [process.exitcode for process in processes]


def steps_at_the_original(blocks):
    return sum(block.steps for block in blocks if block.setting == FOUND_WATTS)
