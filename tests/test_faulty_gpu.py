"""The GPU that fails on demand."""

import threading

import pytest

from tests.contracts.gpu import GpuContract
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.errors import DeviceLostError, DriverFaultError, UsageError
from zeus_core.testing import FaultyGpu, VirtualTime

FAULT = DriverFaultError("no answer")


@pytest.fixture
def gpu():
    return FaultyGpu(SimulatedGpu(find_preset("A40"), time_source=VirtualTime()))


class TestFaultyGpuToldNothing(GpuContract):
    @pytest.fixture
    def gpu(self):
        return FaultyGpu(SimulatedGpu(find_preset("A40"), time_source=VirtualTime()))


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("read_energy_counter_joules", ()),
        ("read_power_watts", ()),
        ("read_power_limit_watts", ()),
        ("read_enforced_power_limit_watts", ()),
        ("read_default_power_limit_watts", ()),
        ("read_power_limit_range_watts", ()),
        ("set_power_limit", (200.0,)),
        ("read_sm_clock_mhz", ()),
        ("read_supported_sm_clocks_mhz", ()),
        ("lock_sm_clock", (1740,)),
        ("unlock_sm_clock", ()),
    ],
)
def test_any_method_fails_until_the_gpu_is_healed(gpu, method, arguments):
    gpu.fail(method, FAULT)
    for _ in range(3):
        with pytest.raises(DriverFaultError, match="no answer"):
            getattr(gpu, method)(*arguments)
    gpu.heal()
    getattr(gpu, method)(*arguments)


def test_a_method_that_hangs_returns_once_the_gpu_is_healed(gpu):
    gpu.hang("set_power_limit")
    setting = threading.Thread(target=gpu.set_power_limit, args=(200.0,))
    setting.start()
    setting.join(0.02)
    assert setting.is_alive()
    assert gpu.read_power_limit_watts() == 300.0
    gpu.heal()
    setting.join(30.0)
    assert gpu.read_power_limit_watts() == 200.0
    with pytest.raises(UsageError, match="method is 'read_mood'"):
        gpu.hang("read_mood")


def test_a_method_can_fail_a_number_of_times(gpu):
    gpu.fail("read_power_watts", FAULT, times=2)
    for _ in range(2):
        with pytest.raises(DriverFaultError):
            gpu.read_power_watts()
    assert gpu.read_power_watts() > 0


def test_the_other_methods_go_on_working(gpu):
    gpu.fail("read_power_watts", FAULT)
    assert gpu.read_power_limit_watts() == 300.0


def test_the_latest_fault_of_a_method_holds(gpu):
    gpu.fail("read_power_watts", FAULT, times=1)
    gpu.fail("read_power_watts", DeviceLostError("gone"))
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            gpu.read_power_watts()


def test_a_failed_call_does_not_reach_the_gpu_behind(gpu):
    gpu.fail("set_power_limit", FAULT, times=1)
    with pytest.raises(DriverFaultError):
        gpu.set_power_limit(200.0)
    assert gpu.read_power_limit_watts() == 300.0


def test_an_unknown_method_is_a_usage_error_that_lists_the_methods(gpu):
    with pytest.raises(UsageError, match=r"read_powr.*read_power_watts.*set_power_limit"):
        gpu.fail("read_powr", FAULT)


def test_failing_no_times_is_a_usage_error(gpu):
    with pytest.raises(UsageError, match="times is 0"):
        gpu.fail("read_power_watts", FAULT, times=0)
