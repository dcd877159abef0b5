"""`NvmlGpu` through a driver of our own behind the real binding."""

import sys
import types

import pytest

from tests.nvml_driver import DeviceSpec
from zeus_core.device import discover_gpus
from zeus_core.device.nvml._gpu import NvmlGpu
from zeus_core.device.nvml._session import NvmlSession
from zeus_core.errors import DeviceLostError, NoDeviceError, NotSupportedError
from zeus_core.testing.contracts import GpuContract

VOLTA, AMPERE = 5, 7


class TestContract(GpuContract):
    @pytest.fixture
    def gpu(self, make_driver):
        driver = make_driver(DeviceSpec(power_limit_watts=450))
        return NvmlGpu(NvmlSession(), driver[0].uuid)


def test_visible_gpus_are_discovered_in_the_order_of_the_variable(make_driver):
    driver = make_driver(DeviceSpec(), DeviceSpec(), DeviceSpec())
    assert [gpu.uuid for gpu in discover_gpus({})] == [device.uuid for device in driver]
    chosen = discover_gpus({"CUDA_VISIBLE_DEVICES": f"2,{driver[0].uuid[:12]}"})
    assert [gpu.uuid for gpu in chosen] == [driver[2].uuid, driver[0].uuid]
    with pytest.raises(NoDeviceError, match="no GPU is visible"):
        discover_gpus({"CUDA_VISIBLE_DEVICES": ""})


def test_a_gpu_that_does_not_answer_shifts_no_index(make_driver):
    driver = make_driver(DeviceSpec(), DeviceSpec(), DeviceSpec())
    driver[0].lose()
    assert [gpu.uuid for gpu in discover_gpus({"CUDA_VISIBLE_DEVICES": "1"})] == [driver[1].uuid]
    assert [gpu.uuid for gpu in discover_gpus({})] == [driver[1].uuid, driver[2].uuid]


def test_a_gpu_that_was_silent_for_once_is_not_given_up(make_driver):
    driver = make_driver(DeviceSpec())
    session = NvmlSession()
    gpu = NvmlGpu(session, driver[0].uuid)
    driver.forget_sessions()
    driver[0].lose()
    with pytest.raises(DeviceLostError, match="fell off the bus"):
        gpu.read_power_watts()
    driver[0].recover()
    assert gpu.read_power_watts() > 0


@pytest.mark.parametrize("code", [2, 3])
def test_without_the_instant_power_field_the_average_is_read(make_driver, code):
    driver = make_driver(DeviceSpec(has_instant_power=False, missing_field_code=code))
    driver[0].set_load(300.0)
    gpu = NvmlGpu(NvmlSession(), driver[0].uuid)
    assert gpu.read_power_watts() > 0
    assert [call.function for call in driver.calls("nvmlDeviceGetPowerUsage")]


def test_a_board_without_clocks_to_lock_says_so(make_driver):
    driver = make_driver(DeviceSpec(memory_clocks_mhz=(), sm_clocks_mhz=()))
    with pytest.raises(NotSupportedError, match="no supported clocks"):
        NvmlGpu(NvmlSession(), driver[0].uuid).read_supported_sm_clocks_mhz()


@pytest.mark.parametrize("period_seconds", [0.02, 0.1])
@pytest.mark.parametrize("architecture", [VOLTA, AMPERE])
def test_the_counter_period_is_found_by_watching(make_driver, architecture, period_seconds):
    driver = make_driver(DeviceSpec(architecture=architecture, counter_period_seconds=period_seconds))
    assert NvmlGpu(NvmlSession(), driver[0].uuid).energy_counter_period_seconds == period_seconds


@pytest.mark.parametrize(("architecture", "period_seconds"), [(VOLTA, 0.02), (AMPERE, 0.1)])
def test_a_counter_that_does_not_step_is_taken_for_one_of_its_architecture(make_driver, architecture, period_seconds):
    driver = make_driver(DeviceSpec(architecture=architecture))
    driver[0].stick_counter()
    assert NvmlGpu(NvmlSession(), driver[0].uuid).energy_counter_period_seconds == period_seconds


def test_a_mig_device_stands_for_its_gpu_with_a_warning(make_driver, caplog):
    driver = make_driver(DeviceSpec(), DeviceSpec(mig_uuids=("MIG-aaaa-1", "MIG-bbbb-2")))
    for entry in ("MIG-bbbb-2", "MIG-a", f"MIG-{driver[1].uuid}/1/0", "MIG-bbbb-2,MIG-aaaa-1"):
        assert [gpu.uuid for gpu in discover_gpus({"CUDA_VISIBLE_DEVICES": entry})] == [driver[1].uuid]
    assert "energies are those of the whole GPU" in caplog.text
    with pytest.raises(NoDeviceError, match="no GPU is visible"):
        discover_gpus({"CUDA_VISIBLE_DEVICES": "MIG-cccc"})


class Torch:
    """As much of torch as is asked, with the GPUs in an order of its own."""

    def __init__(self, uuids, is_initialized=True):
        self.cuda = self
        self.uuids = uuids
        self.is_initialized = lambda: is_initialized
        self.is_available = lambda: True
        self.device_count = lambda: len(uuids)

    def get_device_properties(self, index):
        return types.SimpleNamespace(uuid=self.uuids[index].removeprefix("GPU-"))


def test_indices_are_those_of_torch_where_it_uses_the_gpus(make_driver, monkeypatch, caplog):
    driver = make_driver(DeviceSpec(name="NVIDIA T4"), DeviceSpec(name="NVIDIA H200"))
    fastest_first = [driver[1].uuid, driver[0].uuid]
    monkeypatch.setitem(sys.modules, "torch", Torch(fastest_first))
    assert [gpu.uuid for gpu in discover_gpus({})] == fastest_first
    assert "another order" not in caplog.text


def test_where_cuda_may_count_differently_a_warning_says_so(make_driver, monkeypatch, caplog):
    driver = make_driver(DeviceSpec(name="NVIDIA T4"), DeviceSpec(name="NVIDIA H200"))
    in_pci_order = [device.uuid for device in driver]
    monkeypatch.setitem(sys.modules, "torch", Torch(in_pci_order[::-1], is_initialized=False))
    assert [gpu.uuid for gpu in discover_gpus({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})] == in_pci_order
    assert "another order" not in caplog.text
    assert [gpu.uuid for gpu in discover_gpus({})] == in_pci_order
    assert "another order" in caplog.text


@pytest.mark.parametrize(
    "missing", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetArchitecture", "nvmlDeviceGetFieldValues"]
)
def test_a_driver_that_lacks_a_function_we_can_do_without(make_driver, missing):
    spec = DeviceSpec("Tesla V100-SXM2-32GB", architecture=VOLTA, counter_period_seconds=0.02, power_average_seconds=0)
    driver = make_driver(spec)
    driver.fail(missing, 13)
    driver[0].set_load(250.0)
    (gpu,) = discover_gpus({})
    assert gpu.energy_counter_period_seconds == 0.02
    assert gpu.read_power_watts() == pytest.approx(250.0)
    assert gpu.read_energy_counter_joules() > 0
