"""Boards whose module holds a CPU beside the GPU: the GPU's own limit is controlled, that of the module never."""

import textwrap
import time

import pytest

from tests.contracts.gpu import GpuContract
from tests.nvml_driver import DeviceSpec
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.nvml.nvml_gpu import NvmlGpu
from zeus_core.device.nvml.nvml_session import NvmlSession
from zeus_core.device.nvml.return_codes import device_error
from zeus_core.errors import DeviceError, NotSupportedError, PermissionDeniedError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
from zeus_core.settings.limit_knob import PowerLimitKnob
from zeus_core.settings.restoring import GpusByUuid
from zeus_core.testing import FaultyGpu, VirtualTime

ORIGINAL_WATTS, MODULE_WATTS = 450.0, 900.0
BOTH = DeviceSpec(name="NVIDIA GH200 480GB", power_limit_watts=ORIGINAL_WATTS, limit_scopes="gpu and module")
MODULE = DeviceSpec(name="NVIDIA GH200 480GB", power_limit_watts=ORIGINAL_WATTS, limit_scopes="module")


def opened(driver):
    return NvmlGpu(NvmlSession(), driver[0].uuid)


class TestContractOfABoardWithBothLimits(GpuContract):
    @pytest.fixture
    def gpu(self, make_driver):
        driver = make_driver(BOTH)
        yield opened(driver)
        assert driver[0].module_limit_watts == MODULE_WATTS


def test_the_limit_of_the_gpu_alone_is_read_and_set(make_driver):
    driver = make_driver(BOTH)
    gpu = opened(driver)
    assert gpu.read_power_limit_watts() == ORIGINAL_WATTS
    gpu.set_power_limit(300)
    driver[0].enforced_cap_watts = 250.0
    assert (driver[0].power_limit_watts, driver[0].module_limit_watts) == (300.0, MODULE_WATTS)
    assert gpu.read_enforced_power_limit_watts() == 250.0
    assert gpu.read_power_limit_range_watts() == (200.0, 700.0)
    assert gpu.read_default_power_limit_watts() == 700.0
    assert not driver.calls("nvmlDeviceSetPowerManagementLimit")


def test_a_process_without_the_right_is_told(make_driver):
    """The binding drops the code that the driver returns here."""
    driver = make_driver(BOTH)
    driver[0].deny_control()
    with pytest.raises(PermissionDeniedError, match="sudo nvidia-smi"):
        opened(driver).set_power_limit(300)
    assert driver[0].power_limit_watts == ORIGINAL_WATTS


def test_a_limit_of_the_module_alone_is_read_and_not_set(make_driver):
    driver = make_driver(MODULE)
    gpu = opened(driver)
    assert gpu.read_power_limit_watts() == MODULE_WATTS
    assert gpu.read_power_limit_range_watts() == (200.0, 1400.0)
    with pytest.raises(NotSupportedError, match="for its whole module alone"):
        gpu.set_power_limit(300)
    assert (driver[0].power_limit_watts, driver[0].module_limit_watts) == (ORIGINAL_WATTS, MODULE_WATTS)
    assert not driver.calls("nvmlDeviceSetPowerManagementLimit")


def test_a_board_is_asked_for_its_scopes_once(make_driver):
    driver = make_driver(DeviceSpec())
    gpu = opened(driver)
    gpu.read_power_limit_watts()
    driver.clear_calls()
    gpu.read_power_limit_watts()
    gpu.set_power_limit(300)
    assert not driver.calls("nvmlDeviceGetFieldValues")


def test_a_fault_while_it_is_asked_is_not_taken_for_an_answer(make_driver):
    driver = make_driver(BOTH)
    gpu = opened(driver)
    driver[0].fail("nvmlDeviceGetFieldValues", 999, times=2)
    knob = PowerLimitKnob([gpu], 25)
    knob.apply(300)
    assert (driver[0].power_limit_watts, driver[0].module_limit_watts) == (300.0, MODULE_WATTS)
    assert knob.restore()
    assert driver[0].power_limit_watts == ORIGINAL_WATTS


@pytest.mark.parametrize("spec", [BOTH, MODULE])
def test_a_gpu_that_is_opened_to_be_restored_knows_the_scopes_too(make_driver, spec):
    driver = make_driver(spec)
    gpu = GpusByUuid().gpu(driver[0].uuid)
    if spec is MODULE:
        with pytest.raises(NotSupportedError):
            gpu.set_power_limit(300)
    else:
        driver.forget_sessions()
        assert gpu.read_power_limit_watts() == ORIGINAL_WATTS
        driver.forget_sessions()
        gpu.set_power_limit(300)
        assert driver[0].power_limit_watts == 300.0
    assert driver[0].module_limit_watts == MODULE_WATTS


@pytest.mark.parametrize("code", [2, 3, 4, 6, 10, 15, 16, 17, 18, 26, 999])
@pytest.mark.parametrize("spec", [DeviceSpec(), BOTH])
def test_a_code_has_one_meaning_on_boards_with_scopes_and_without(make_driver, spec, code):
    driver = make_driver(spec)
    gpu = opened(driver)
    gpu.read_power_limit_range_watts()
    for function in ("nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetPowerManagementLimit_v2"):
        driver[0].fail(function, code)
    with pytest.raises(DeviceError, match=rf"NVML error {code}\)") as raised:
        gpu.set_power_limit(300)
    assert type(raised.value) is type(device_error(code, "setting the power limit"))


def test_a_gpu_that_is_opened_to_be_restored_is_asked_for_nothing_else(make_driver):
    """A board that no longer answers what measuring needs is restored all the same."""
    driver = make_driver(DeviceSpec())
    for function in ("nvmlDeviceGetName", "nvmlDeviceGetArchitecture"):
        driver[0].fail(function, 999)
    gpu = GpusByUuid().gpu(driver[0].uuid)
    gpu.set_power_limit(300)
    gpu.lock_sm_clock(1410)
    assert (driver[0].power_limit_watts, driver[0].locked_clock_mhz) == (300.0, 1410)


def test_the_guardian_restores_the_limit_of_the_gpu(make_driver):
    driver = make_driver(BOTH)
    program = """
        import os, signal
        from zeus_core.device import discover_gpus
        from zeus_core.settings.limit_knob import PowerLimitKnob
        PowerLimitKnob(discover_gpus({}), 25).apply(300)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    process = driver.start(textwrap.dedent(program))
    process.communicate()
    until = time.monotonic() + 60.0
    while driver[0].power_limit_watts != ORIGINAL_WATTS or list(driver.ledger_path.glob("*")):
        assert time.monotonic() < until
        time.sleep(0.005)
    assert {call.code for call in driver.calls("nvmlDeviceSetPowerManagementLimit_v2")} == {0}
    assert driver[0].module_limit_watts == MODULE_WATTS


def test_a_search_reports_that_its_limit_is_that_of_the_module(caplog):
    time_source = VirtualTime()
    simulated = SimulatedGpu(find_preset("A40"), time_source=time_source, power_limit_watts=250.0)
    gpu = FaultyGpu(simulated)
    gpu.fail("set_power_limit", NotSupportedError("A40 has a power limit for its whole module alone"))
    optimizer = GlobalPowerLimitOptimizer(
        ZeusMonitor(gpus=[gpu], time_source=time_source), wait_steps=0, warmup_steps=1, profile_steps=4, quiet=True
    )
    for _ in range(20):
        optimizer.on_step_begin()
        simulated.execute(Work(0.9, 289.2, 0.889, 0.784))
        optimizer.on_step_end()
    assert [trial.setting for trial in optimizer.trials] == [250]
    optimizer.close()
    (record,) = caplog.records
    assert "for its whole module alone" in record.getMessage()
