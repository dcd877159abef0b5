"""Boards whose energy counter covers a module with a CPU, while their power is that of the GPU."""

import time

import pytest

from tests.nvml_driver import DeviceSpec
from zeus_core.device import discover_gpus
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.device.nvml._energy_counter import compare_counter
from zeus_core.errors import NotSupportedError
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime

NO_CPUS = CpuDiscovery(cpus=(), unavailable_because="not part of these tests")
GH200 = {"name": "NVIDIA GH200 480GB", "limit_scopes": "gpu and module"}


def compared(gpu_watts, counted_watts, module_watts=None, period_seconds=0.1):
    """Compare a counter in virtual time."""
    time_source = VirtualTime()
    return compare_counter(
        lambda: counted_watts * period_seconds * (time_source.now() // period_seconds),
        lambda: gpu_watts,
        lambda: module_watts,
        time_source,
    )


@pytest.mark.parametrize(
    ("gpu_watts", "counted_watts", "module_watts"),
    [(75.0, 75.0, None), (75.0, 80.0, None), (75.0, 75.0, 150.0), (700.0, 700.0, 790.0), (700.0, 650.0, None)],
)
def test_a_counter_of_the_gpu_is_used(gpu_watts, counted_watts, module_watts):
    assert compared(gpu_watts, counted_watts, module_watts) is None


@pytest.mark.parametrize(
    ("gpu_watts", "counted_watts", "module_watts"),
    [(75.0, 160.0, None), (75.0, 160.0, 160.0), (700.0, 790.0, 790.0), (700.0, 900.0, None)],
)
def test_a_counter_of_the_module_is_named(gpu_watts, counted_watts, module_watts):
    reason = compared(gpu_watts, counted_watts, module_watts)
    assert "covers the whole module" in reason
    assert f"of which the GPU draws {gpu_watts:.0f} W" in reason


def test_a_counter_that_does_not_move_is_not_taken_for_the_gpu():
    assert "did not move" in compared(75.0, 160.0, period_seconds=10.0)


@pytest.mark.real_time
@pytest.mark.parametrize("spec", [GH200, {"name": "NVIDIA GB200"}, {"name": "B", "limit_scopes": "module"}])
def test_windows_hold_the_energy_of_the_gpu_alone(make_driver, spec):
    driver = make_driver(DeviceSpec(**spec, rest_of_module_watts=150.0))
    driver[0].set_load(300.0)
    (gpu,) = discover_gpus({})
    monitor = ZeusMonitor(gpus=[gpu], cpus=NO_CPUS)
    monitor.begin_window("window")
    begin = time.monotonic()
    time.sleep(0.5)
    end = time.monotonic()
    (energy,) = monitor.end_window("window").devices.values()
    assert energy.method == "integrated"
    assert abs(energy.energy_joules - driver[0].true_energy_joules(begin, end)) <= energy.uncertainty_joules
    assert energy.energy_joules == pytest.approx(300.0 * (end - begin), rel=0.1)
    with pytest.raises(NotSupportedError, match=r"covers the whole module, [45]\d\d W now, of which the GPU"):
        gpu.read_energy_counter_joules()


@pytest.mark.real_time
def test_a_module_whose_counter_is_that_of_the_gpu_is_counted(make_driver):
    make_driver(DeviceSpec(**GH200))
    (gpu,) = discover_gpus({})
    assert gpu.read_energy_counter_joules() >= 1000.0


def test_other_boards_are_not_watched(make_driver):
    driver = make_driver()
    (gpu,) = discover_gpus({})
    gpu.read_energy_counter_joules()
    assert len(driver.calls("nvmlDeviceGetTotalEnergyConsumption")) == 1
