"""Boards without a limit to set, such as laptops, GB10 and virtual GPUs: the search that is asked for by a word."""

import pytest

from tests.nvml_driver import DeviceSpec
from zeus_core.device import SimulatedGpu, Work, discover_gpus, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import NotSupportedError, PermissionDeniedError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.optimizer.asked import asked_optimizer, automatic_optimizer
from zeus_core.testing import FaultyGpu, ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy

NO_CPUS = CpuDiscovery((), "not part of this test")
WORK = Work(0.5, 440.0, 1.0, 0.85)  # under 400 W an A100 runs it at about 1290 MHz

ABSENT = NotSupportedError("this GPU does not have this function")
HIDDEN_LIMIT, REFUSED_LIMIT = ("read_power_limit_range_watts", ABSENT), ("set_power_limit", ABSENT)
FORBIDDEN_LIMIT = ("set_power_limit", PermissionDeniedError("this needs root"))
BY_VARIABLE, BY_WORD = (lambda monitor: asked_optimizer(monitor, {"ZEUS_SAVE": "10%"})), automatic_optimizer("auto")


def train(make, *faults, world=None, steps=400):
    """Train on an A100 with some faults. Returns the optimizer and its result."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), 0 if world is None else world.rank, time_source=time_source)
    faulty = FaultyGpu(gpu)
    for fault in faults:
        faulty.fail(*fault)
    optimizer = make(ZeusMonitor(gpus=[faulty], cpus=NO_CPUS, time_source=time_source))
    if world is not None:
        optimizer.use_world(world)
    optimizer.quiet = True
    optimizer.on_train_begin(max_steps=steps)
    for _ in range(steps):
        optimizer.on_step_begin()
        gpu.execute(WORK)
        optimizer.on_step_end()
    optimizer.on_train_end()
    return optimizer, optimizer.result()


@pytest.mark.parametrize("make", [BY_VARIABLE, BY_WORD])
@pytest.mark.parametrize("fault", [HIDDEN_LIMIT, REFUSED_LIMIT])
def test_where_no_limit_can_be_set_the_clock_is_chosen(caplog, make, fault):
    optimizer, result = train(make, fault)
    assert optimizer.chosen_clock_mhz < optimizer.baseline_clock_mhz
    assert optimizer.saving_fraction > 0.02
    assert "fault" not in str(result)
    assert "SM clocks are searched, and not power limits: " in caplog.text


@pytest.mark.parametrize("fault", [HIDDEN_LIMIT, REFUSED_LIMIT])
def test_one_rank_without_a_limit_has_all_search_clocks(fault):
    ranks = ThreadWorld.run(
        2, lambda world: train(BY_WORD, *([fault] if world.rank == 1 else []), world=world), timeout_seconds=120.0
    )
    first, second = [optimizer.chosen_clock_mhz for optimizer, _ in ranks]
    assert first == second is not None


def test_elsewhere_the_limit_is_searched():
    optimizer, _ = train(BY_WORD)
    assert optimizer.chosen_limit_watts < 400


def test_without_the_right_alone_what_an_administrator_could_set_is_predicted():
    optimizer, result = train(BY_WORD, FORBIDDEN_LIMIT)
    assert optimizer.baseline_limit_watts == 400
    assert result["power limit"].startswith("not changed, as setting it is not permitted here")
    assert "-pl" in result["to set it"]


@pytest.fixture
def laptop(make_driver):
    """A board that shows a limit, takes none, and has no clocks to lock."""
    driver = make_driver(DeviceSpec(name="NVIDIA GeForce RTX 4090 Laptop GPU", sm_clocks_mhz=(), memory_clocks_mhz=()))
    driver.fail("nvmlDeviceSetPowerManagementLimit", 3)
    return driver


def result_on_the_board(optimizer):
    """Train three steps on the GPUs of the driver. Returns the result."""
    monitor = ZeusMonitor(gpus=discover_gpus({}), cpus=NO_CPUS)
    if optimizer != "auto":
        optimizer = optimizer(monitor)
    with TrainingEnergy(monitor, optimizer, quiet=True) as energy:
        for _ in range(3):
            with energy.step():
                pass
    return energy.result()


@pytest.mark.parametrize("optimizer", ["auto", GlobalPowerLimitOptimizer])
def test_a_board_that_takes_no_limit_is_told_no_command_that_sets_one(laptop, caplog, optimizer):
    result = result_on_the_board(optimizer)
    assert "this GPU does not have this function" in result["power limit"]
    assert "measured at the original 700 W" in result["power limit"]
    assert "permitted" not in caplog.text + str(result)
    assert "nvidia-smi" not in caplog.text + str(result)


@pytest.mark.parametrize("optimizer", ["auto", GlobalPowerLimitOptimizer])
def test_a_board_with_nothing_to_set_is_not_at_fault(make_driver, caplog, optimizer):
    make_driver(DeviceSpec(name="Orin (nvgpu)", has_power_limit=False, sm_clocks_mhz=(), memory_clocks_mhz=()))
    result = result_on_the_board(optimizer)
    assert result["power limit"].startswith("not searched: Orin (nvgpu) has no power limit to set: ")
    assert "fault" not in result["power limit"]
    assert "restored" not in result["power limit"], "nothing was changed"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
