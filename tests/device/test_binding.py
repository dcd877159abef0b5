"""Indices stay bound to the same devices, whatever the driver answers while they are counted."""

import sys
import types

import pytest

from tests.device.test_nvml import Torch
from tests.nvml_driver import DeviceSpec
from zeus_core.device import discover_gpus
from zeus_core.errors import DeviceError, DeviceLostError, NoDeviceError
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.selection import warn_unless_measured

UNKNOWN, LOST, NO_PERMISSION = 999, 15, 4
IDENTIFYING = ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"]


@pytest.fixture
def driver(make_driver):
    return make_driver(DeviceSpec(), DeviceSpec(), DeviceSpec())


def uuids_of(gpus):
    return [gpu.uuid for gpu in gpus]


def is_refused(gpu, name):
    with pytest.raises(DeviceError, match=name):
        gpu.read_power_watts()
    with pytest.raises(DeviceError, match=name):
        gpu.set_power_limit(300.0)


@pytest.mark.parametrize("code", [UNKNOWN, LOST, NO_PERMISSION])
@pytest.mark.parametrize("function", IDENTIFYING)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_passing_fault_while_gpus_are_counted_changes_nothing(driver, index, function, code):
    driver[index].fail(function, code, times=2)
    assert uuids_of(discover_gpus({})) == uuids_of(driver)


@pytest.mark.parametrize(
    "function",
    [
        *("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName", "nvmlDeviceGetArchitecture"),
        *("nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEnergyConsumption"),
        "nvmlDeviceGetPowerManagementLimitConstraints",
    ],
)
def test_a_passing_fault_of_any_call_ends_no_constructor(driver, function):
    driver.fail(function, UNKNOWN, times=2)
    monitor = ZeusMonitor(gpu_indices=[0])
    assert monitor.gpus[0].power_average_seconds == 0  # it was not taken for a GPU without the instant power
    assert uuids_of(monitor.gpus.values()) == [driver[0].uuid]


@pytest.mark.parametrize("index", [0, 1])
def test_a_gpu_that_stays_unknown_keeps_its_index_and_is_refused(driver, index):
    driver[index].fail("nvmlDeviceGetUUID", UNKNOWN)
    gpus = discover_gpus({})
    is_refused(gpus[index], rf"GPU {index} .*NVML error 999")
    assert uuids_of(gpus[index + 1 :]) == uuids_of(driver)[index + 1 :]
    with pytest.raises(DeviceError, match=rf"GPU {index} .*NVML error 999"):
        ZeusMonitor(gpu_indices=[index])
    assert ZeusMonitor(gpu_indices=[2]).gpus[2].uuid == driver[2].uuid


def test_a_lost_gpu_shifts_no_other_and_is_named_among_all(driver, caplog):
    driver[1].lose()
    monitor = ZeusMonitor()
    assert {index: gpu.uuid for index, gpu in monitor.gpus.items()} == {0: driver[0].uuid, 2: driver[2].uuid}
    assert "GPU 1" in caplog.text
    assert "fell off the bus" in caplog.text


def test_a_rank_whose_own_gpu_is_lost_is_refused_any_other(driver, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    driver[1].lose()
    with pytest.raises(DeviceLostError, match="GPU 1"):
        ZeusMonitor()
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert uuids_of(ZeusMonitor().gpus.values()) == [driver[2].uuid]


def test_a_machine_whose_gpus_are_all_lost_says_so(driver):
    for device in driver:
        device.lose()
    with pytest.raises(DeviceLostError, match="GPU 0"):
        ZeusMonitor()


@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetUUID"])
def test_a_gpu_that_does_not_answer_keeps_its_place_in_the_variable(driver, function):
    driver[1].fail(function, UNKNOWN)
    gpus = discover_gpus({"CUDA_VISIBLE_DEVICES": "2,1,0"})
    assert [gpus[0].uuid, gpus[2].uuid] == [driver[2].uuid, driver[0].uuid]
    is_refused(gpus[1], "GPU 1")
    by_uuid = discover_gpus({"CUDA_VISIBLE_DEVICES": f"{driver[1].uuid},{driver[0].uuid[:14]}"})
    is_refused(by_uuid[0], "GPU 1")
    assert by_uuid[1].uuid == driver[0].uuid


def test_a_mig_device_is_found_in_spite_of_passing_faults(make_driver):
    driver = make_driver(DeviceSpec(), DeviceSpec(mig_uuids=("MIG-aaaa-1", "MIG-bbbb-2")))
    driver.fail("nvmlDeviceGetMaxMigDeviceCount", UNKNOWN, times=2)
    driver.fail("nvmlDeviceGetMigDeviceHandleByIndex", UNKNOWN, times=2)
    assert uuids_of(discover_gpus({"CUDA_VISIBLE_DEVICES": "MIG-bbbb"})) == [driver[1].uuid]


def test_where_torch_uses_the_gpus_its_order_tells_which_one_is_silent(driver, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Torch(uuids_of(driver)[::-1]))
    driver[1].fail("nvmlDeviceGetUUID", UNKNOWN)
    driver.fail("nvmlDeviceGetHandleByUUID", UNKNOWN)
    gpus = discover_gpus({})
    assert [gpus[0].uuid, gpus[2].uuid] == [driver[2].uuid, driver[0].uuid]
    is_refused(gpus[1], driver[1].uuid)


def test_a_gpu_that_cuda_does_not_show_either_has_no_index(driver, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Torch([driver[0].uuid, driver[2].uuid]))
    driver[1].lose()
    assert uuids_of(discover_gpus({})) == [driver[0].uuid, driver[2].uuid]


def test_training_on_a_gpu_that_cuda_counts_otherwise_is_mentioned(driver, monkeypatch, caplog):
    cuda_device = types.SimpleNamespace(type="cuda", index=0)
    monitor = ZeusMonitor(gpu_indices=[0, 1])
    monkeypatch.setitem(sys.modules, "torch", Torch(uuids_of(driver)))
    warn_unless_measured(monitor.gpus, cuda_device)
    assert caplog.text == ""
    monkeypatch.setitem(sys.modules, "torch", Torch(uuids_of(driver)[::-1]))
    warn_unless_measured(monitor.gpus, cuda_device)
    assert (
        f"training runs on GPU 0, which is {driver[2].uuid} for CUDA, but {driver[0].uuid} is measured" in caplog.text
    )


def test_a_driver_that_cannot_be_opened_is_an_error_with_its_remedy(driver):
    driver.fail("nvmlInit", 9)
    with pytest.raises(NoDeviceError, match="modprobe nvidia"):
        discover_gpus({})
