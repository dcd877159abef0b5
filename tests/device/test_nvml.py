"""`NvmlGpu` through a driver of our own behind the real binding."""

import sys
import threading
import types
from dataclasses import replace

import pytest

from tests.contracts.gpu import GpuContract
from tests.nvml_driver import DeviceSpec
from zeus_core.device import SimulatedGpu, discover_gpus, find_preset
from zeus_core.device.gpu import read_or_none
from zeus_core.device.nvml.nvml_gpu import NvmlGpu
from zeus_core.device.nvml.nvml_session import NvmlSession
from zeus_core.device.nvml.restoring_gpu import RestoringGpu
from zeus_core.device.nvml.return_codes import device_error
from zeus_core.errors import (
    DeviceError,
    DeviceLostError,
    DriverFaultError,
    NoDeviceError,
    NotSupportedError,
    PermissionDeniedError,
    UsageError,
)
from zeus_core.kinds import SM_CLOCK
from zeus_core.settings.clock_knob import LockKnob, SmClockKnob
from zeus_core.settings.limit_knob import PowerLimitKnob

VOLTA, AMPERE = 5, 7


@pytest.fixture
def driver(make_driver):
    """One H200."""
    return make_driver()


@pytest.fixture
def gpu(driver):
    return NvmlGpu(NvmlSession(), driver[0].uuid)


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


@pytest.mark.real_time
@pytest.mark.parametrize("period_seconds", [0.02, 0.1])
@pytest.mark.parametrize("architecture", [VOLTA, AMPERE])
def test_the_counter_period_is_found_by_watching(make_driver, architecture, period_seconds):
    driver = make_driver(DeviceSpec(architecture=architecture, counter_period_seconds=period_seconds))
    assert NvmlGpu(NvmlSession(), driver[0].uuid).energy_counter_period_seconds == period_seconds


@pytest.mark.parametrize(("architecture", "period_seconds"), [(VOLTA, 0.02), (AMPERE, 0.1)])
def test_a_stuck_counter_is_assumed_typical_of_its_architecture(make_driver, architecture, period_seconds):
    driver = make_driver(DeviceSpec(architecture=architecture))
    driver[0].stick_counter()
    assert NvmlGpu(NvmlSession(), driver[0].uuid).energy_counter_period_seconds == period_seconds


@pytest.mark.parametrize("read", [lambda gpu: gpu.energy_counter_period_seconds, lambda gpu: gpu.lock_sm_clock(1200)])
def test_a_gpu_that_hangs_keeps_no_other_from_its_period_and_clocks(make_driver, read):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    hanging, other = discover_gpus({})
    driver[0].hang(None)
    threads = [threading.Thread(target=read, args=(gpu,), daemon=True) for gpu in (hanging, other)]
    for thread in threads:
        thread.start()
    threads[1].join(30.0)
    assert not threads[1].is_alive()
    driver[0].release()
    threads[0].join(30.0)


def test_a_mig_device_stands_for_its_gpu_with_a_warning(make_driver, caplog):
    driver = make_driver(DeviceSpec(), DeviceSpec(mig_uuids=("MIG-aaaa-1", "MIG-bbbb-2")))
    for entry in ("MIG-bbbb-2", "MIG-a", f"MIG-{driver[1].uuid}/1/0", "MIG-bbbb-2,MIG-aaaa-1"):
        assert [gpu.uuid for gpu in discover_gpus({"CUDA_VISIBLE_DEVICES": entry})] == [driver[1].uuid]
    assert "energies are those of the whole GPU" in caplog.text
    with pytest.raises(NoDeviceError, match="no GPU is visible"):
        discover_gpus({"CUDA_VISIBLE_DEVICES": "MIG-cccc"})


class Torch:
    """The part of torch that is used here, with the GPUs in an order of its own."""

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


T4 = DeviceSpec(name="NVIDIA T4", lowest_limit_watts=60, highest_limit_watts=70)
A100 = DeviceSpec(name="NVIDIA A100-SXM4-80GB", lowest_limit_watts=100, highest_limit_watts=400)


@pytest.mark.parametrize(
    ("variables", "is_doubted", "is_refused"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, True, True),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, True, False),
        ({}, True, False),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, True, True),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-t4"}, False, False),
    ],
)
def test_no_board_is_changed_in_the_place_of_another_that_cuda_may_mean(
    make_driver, caplog, variables, is_doubted, is_refused
):
    """CUDA counts the fastest board first, also before the variable chooses: index 0 is the A100."""
    driver = make_driver(replace(T4, uuid="GPU-t4"), A100)
    gpus = discover_gpus(variables)
    assert ("another order" in caplog.text) == is_doubted
    for knob, setting in ((PowerLimitKnob(gpus, 5), -1), (LockKnob(SM_CLOCK, gpus), 1)):
        if is_refused:
            with pytest.raises(NotSupportedError, match=r"NVIDIA T4, NVIDIA A100.*set CUDA_DEVICE_ORDER=PCI_BUS_ID$"):
                knob.apply(knob.settings[setting])
        else:
            knob.apply(knob.settings[setting])
        assert knob.restore()
    one = SmClockKnob(gpus[0])  # as of a rank of Perseus: the index may mean the other one in every order
    if is_doubted:
        with pytest.raises(NotSupportedError, match="PCI_BUS_ID"):
            one.apply(one.settings[1])
    else:
        one.apply(one.settings[1])
    assert one.restore()
    assert bool(driver.calls("nvmlDeviceSetPowerManagementLimit")) != is_refused
    assert bool(driver.calls("nvmlDeviceSetGpuLockedClocks")) != is_refused


@pytest.mark.parametrize(
    "missing", ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetArchitecture", "nvmlDeviceGetFieldValues"]
)
def test_a_driver_that_lacks_a_function_we_can_do_without(make_driver, missing):
    spec = DeviceSpec("Tesla V100-SXM2-32GB", architecture=VOLTA, counter_period_seconds=0.02, power_average_seconds=0)
    driver = make_driver(spec)
    driver.fail(missing, 13)
    driver[0].set_load(250.0)
    (gpu,) = discover_gpus({})
    assert gpu.energy_counter_period_seconds > 0
    assert gpu.read_power_watts() == pytest.approx(250.0)
    assert gpu.read_energy_counter_joules() > 0


def test_every_code_has_a_kind_and_a_remedy():
    for code in (*range(1, 31), 999, 12345):
        error = device_error(code, "reading the power of GPU-1")
        assert isinstance(error, DeviceError)
        assert str(error).startswith("reading the power of GPU-1 failed: ")
        assert str(error).endswith(f"(NVML error {code})")


def test_reads(driver, gpu):
    assert gpu.name == "NVIDIA H200"
    assert gpu.read_power_limit_range_watts() == (200.0, 700.0)
    assert gpu.read_default_power_limit_watts() == gpu.read_power_limit_watts() == 700.0
    assert gpu.read_supported_sm_clocks_mhz() == tuple(driver[0].spec.sm_clocks_mhz)
    assert gpu.read_sm_clock_mhz() == 1980
    driver[0].set_load(444.0)
    assert gpu.read_power_watts() == 444.0
    counter = gpu.read_energy_counter_joules()
    assert counter == driver[0].counter_joules_at(driver.calls()[-1].seconds)


def test_the_version_of_the_driver_is_known_where_the_driver_tells_it(driver, gpu):
    assert read_or_none(gpu.read_driver_version) == gpu.read_driver_version() != ""
    driver.fail("nvmlSystemGetDriverVersion", 999)
    assert read_or_none(gpu.read_driver_version) is None
    assert read_or_none(SimulatedGpu(find_preset("A40")).read_driver_version) is None


def test_a_volta_has_a_faster_counter_and_no_instant_power(make_driver):
    driver = make_driver(
        DeviceSpec(architecture=5, has_instant_power=False, power_average_seconds=0, counter_period_seconds=0.02)
    )
    driver[0].set_load(250.0)
    gpu = NvmlGpu(NvmlSession(), driver[0].uuid)
    assert gpu.read_power_watts() == 250.0


def test_sets_the_power_limit(driver, gpu):
    gpu.set_power_limit(300.5)
    assert driver[0].power_limit_watts == gpu.read_power_limit_watts() == 300.5
    driver[0].enforced_cap_watts = 250.0
    assert gpu.read_enforced_power_limit_watts() == 250.0


@pytest.mark.parametrize("limit_watts", [199.0, 701.0, float("nan")])
def test_invalid_limits_do_not_reach_the_driver(driver, gpu, limit_watts):
    with pytest.raises(UsageError, match="accepts 200 to 700 W"):
        gpu.set_power_limit(limit_watts)
    assert driver.calls("nvmlDeviceSetPowerManagementLimit") == []


def test_supported_clocks_are_read_once_for_all_changes(driver, gpu):
    gpu.lock_sm_clock(1200)
    driver.clear_calls()
    gpu.lock_sm_clock(1980)
    assert [call.function for call in driver.calls()] == ["nvmlDeviceSetGpuLockedClocks"]


def test_locks_the_clock(driver, gpu):
    gpu.lock_sm_clock(1200)
    assert driver[0].locked_clock_mhz == gpu.read_sm_clock_mhz() == 1200
    with pytest.raises(UsageError, match="supports 1980"):
        gpu.lock_sm_clock(1201)
    gpu.unlock_sm_clock()
    assert driver[0].locked_clock_mhz is None


def test_without_rights_it_says_what_an_admin_would_run(driver, gpu):
    driver[0].deny_control()
    with pytest.raises(PermissionDeniedError, match=rf"sudo nvidia-smi -i {driver[0].uuid} -pl 300$"):
        gpu.set_power_limit(300.0)
    with pytest.raises(PermissionDeniedError, match=r"-lgc 1200$"):
        gpu.lock_sm_clock(1200)
    assert gpu.read_power_limit_watts() == 700.0


def test_opens_again_when_the_session_is_gone(driver, gpu):
    driver.forget_sessions()
    assert gpu.read_power_limit_watts() == 700.0


class HandlesOpenedAgain(dict):
    """Handles of a session that another thread opens again right after one is found."""

    def __init__(self, session):
        super().__init__()
        self._session = session

    def __setitem__(self, uuid, handle):
        super().__setitem__(uuid, handle)
        self._session._process_id = None
        self._session.open()


def test_a_handle_is_found_while_another_thread_opens_the_session_again(driver):
    session = NvmlSession()
    session.open()
    session._handles = HandlesOpenedAgain(session)
    assert session.handle(driver[0].uuid) is not None


class TestRestoring:
    """Setting comes first: what a board accepts is read where it refuses."""

    @pytest.fixture
    def gpu(self, driver):
        return RestoringGpu(NvmlSession(), driver[0].uuid)

    @pytest.mark.parametrize("limit_watts", [10.0, 5000.0, -1.0, 2**32 / 1e3 + 300])
    def test_a_limit_outside_the_range_is_refused(self, driver, gpu, limit_watts):
        with pytest.raises(UsageError, match="does not accept"):
            gpu.set_power_limit(limit_watts)
        assert driver[0].power_limit_watts == 700.0

    def test_nothing_is_read_for_a_limit_that_is_accepted(self, driver, gpu):
        gpu.set_power_limit(300.0)
        gpu.lock_sm_clock(1200)
        assert (driver[0].power_limit_watts, driver[0].locked_clock_mhz) == (300.0, 1200)
        asked = {call.function for call in driver.calls()}
        assert "nvmlDeviceGetPowerManagementLimitConstraints" not in asked
        assert "nvmlDeviceGetSupportedMemoryClocks" not in asked


def test_a_lost_gpu_hides_no_other(make_driver):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    session = NvmlSession()
    gpus = [NvmlGpu(session, uuid) for uuid in session.read_uuids()]
    driver[0].lose()
    with pytest.raises(DeviceLostError):
        gpus[0].read_power_watts()
    assert gpus[1].read_power_watts() > 0
    lost, uuid = NvmlSession().read_uuids()
    assert isinstance(lost, DeviceLostError)
    assert uuid == driver[1].uuid


@pytest.mark.parametrize(
    ("code", "kind"),
    [(3, NotSupportedError), (10, DriverFaultError), (15, DeviceLostError), (77, DriverFaultError)],
)
def test_codes_become_errors(driver, gpu, code, kind):
    driver[0].fail("nvmlDeviceGetTotalEnergyConsumption", code, times=2)  # a fault of one call is not passed on
    with pytest.raises(kind, match=rf"NVML error {code}\)"):
        gpu.read_energy_counter_joules()
    assert gpu.read_energy_counter_joules() > 0


def test_no_driver(driver):
    driver.fail("nvmlInit", 9)
    with pytest.raises(NoDeviceError, match="modprobe nvidia"):
        NvmlSession().read_uuids()


def test_hardware_is_restored_while_the_binding_looks_up_another_function(make_driver):
    # As in a signal handler that has interrupted the look-up, which holds this lock.
    make_driver(DeviceSpec())
    (gpu,) = discover_gpus({})
    gpu.read_supported_sm_clocks_mhz()

    def restore():
        gpu.set_power_limit(gpu.read_power_limit_watts())
        gpu.lock_sm_clock(gpu.read_supported_sm_clocks_mhz()[0])
        gpu.unlock_sm_clock()

    restoring = threading.Thread(target=restore, daemon=True)
    with sys.modules["pynvml"].libLoadLock:
        restoring.start()
        restoring.join(240.0)
        assert not restoring.is_alive()
