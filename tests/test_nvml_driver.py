"""The NVML driver for tests, called through the real pynvml."""

import os
import signal
import threading
import time

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.nvml_driver import DeviceSpec, NoCompilerError, NvmlDevice, NvmlDriver, build_library

MIG_UUIDS = ("MIG-0a", "MIG-0b")


@pytest.fixture
def driver(make_driver):
    """One H200, with NVML initialised."""
    driver = make_driver()
    pynvml.nvmlInit()
    return driver


@pytest.fixture
def handle(driver):
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def last_moment(driver: NvmlDriver) -> int:
    return driver.calls()[-1].nanoseconds


class TestLibrary:
    def test_pynvml_finds_it_by_name_in_a_new_process(self, driver):
        script = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlSystemGetDriverVersion())"
        assert driver.run(script) == "570.86.15"

    def test_close_gives_pynvml_its_own_library_back(self, nvml_library, tmp_path):
        found = pynvml.nvmlLib
        with NvmlDriver(tmp_path, library=nvml_library) as driver:
            driver.load_in_process()
            pynvml.nvmlInit()
            assert pynvml.nvmlDeviceGetCount() == 1
        assert pynvml.nvmlLib is found

    def test_is_compiled_once(self, nvml_library):
        before = nvml_library.stat().st_mtime_ns
        assert build_library(nvml_library.parents[1]) == nvml_library
        assert nvml_library.stat().st_mtime_ns == before

    def test_says_that_there_is_no_compiler(self, monkeypatch, tmp_path):
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(NoCompilerError, match="no C compiler"):
            build_library(tmp_path)

    def test_each_driver_of_a_process_has_its_own_devices(self, make_driver):
        first, second = make_driver(DeviceSpec(name="A")), make_driver(DeviceSpec(name="B"), DeviceSpec())
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 2
        second.close()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)) == first[0].name == "A"

    def test_a_handle_of_another_driver_is_invalid(self, make_driver, handle):
        make_driver()
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetName(handle)


class TestEnumeration:
    def test_devices_are_found_by_index_uuid_and_bus(self, make_driver):
        driver = make_driver(DeviceSpec(name="NVIDIA A100"), DeviceSpec(uuid="GPU-mine", pci_bus=0xAB))
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == len(driver) == 2
        for device in driver:
            handle = pynvml.nvmlDeviceGetHandleByIndex(device.index)
            assert pynvml.nvmlDeviceGetUUID(handle) == device.uuid
            assert pynvml.nvmlDeviceGetName(handle) == device.name
            bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
            for same in (pynvml.nvmlDeviceGetHandleByUUID(device.uuid), pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)):
                assert pynvml.nvmlDeviceGetIndex(same) == device.index
        assert driver[1].uuid == "GPU-mine"
        assert pynvml.nvmlDeviceGetHandleByPciBusId("0000:ab:00.0")

    def test_unknown_devices(self, driver):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetHandleByIndex(1)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByUUID("GPU-unknown")
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetName(None)

    def test_mig_devices(self, make_driver):
        driver = make_driver(DeviceSpec(mig_uuids=MIG_UUIDS))
        pynvml.nvmlInit()
        parent = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetMigMode(parent) == [1, 1]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(parent) == 7
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 1)
        assert pynvml.nvmlDeviceGetUUID(mig) == MIG_UUIDS[1]
        assert pynvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(MIG_UUIDS[1])) == 1
        again = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
        assert pynvml.nvmlDeviceGetUUID(again) == driver[0].uuid
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 2)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetTotalEnergyConsumption(mig)

    def test_processes_of_the_whole_and_of_its_parts(self, make_driver):
        driver = make_driver(DeviceSpec(mig_uuids=MIG_UUIDS))
        pynvml.nvmlInit()
        whole, mig = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByUUID(MIG_UUIDS[1])
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(whole) == []
        driver[0].set_processes((71, 1, 0), (72, 2, 0))
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(whole)
        assert [(process.pid, process.gpuInstanceId, process.computeInstanceId) for process in found] == [
            (71, 1, 0),
            (72, 2, 0),
        ]
        assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(mig)] == [72]
        assert pynvml.nvmlDeviceGetGpuInstanceId(mig) == 2
        assert pynvml.nvmlDeviceGetComputeInstanceId(mig) == 0
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetGpuInstanceId(whole)

    def test_mig_may_be_off_or_absent(self, make_driver):
        make_driver(DeviceSpec(), DeviceSpec(has_mig=False))
        pynvml.nvmlInit()
        whole, incapable = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in (0, 1))
        assert pynvml.nvmlDeviceGetMigMode(whole) == [0, 0]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(whole) == 0
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetMigMode(incapable)


LOADS = {
    "constant": (321.5, False),
    "stepped": ([(0.001, 500.0), (0.002, 100.0), (1.0, 250.0)], False),
    "bursty": ([(0.0013, 650.0), (0.0007, 120.0)], True),
}


class TestEnergy:
    @pytest.mark.parametrize("load", LOADS)
    def test_counter_is_the_true_energy_as_of_its_latest_step(self, make_driver, load):
        period = 0.0007
        driver = make_driver(DeviceSpec(counter_period_seconds=period, counter_phase_seconds=0.0003))
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        segments, repeat = LOADS[load]
        driver[0].set_load(segments, repeat=repeat)
        begin = time.monotonic()
        for _ in range(20):
            counter = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            moment = last_moment(driver)
            assert counter == driver[0].counter_millijoules_at(moment)
            highest = 1000 + driver[0].true_energy_until(moment / 1e9)
            lowest = 1000 + driver[0].true_energy_until(moment / 1e9 - period) - 0.001
            assert lowest <= counter / 1e3 <= highest
            time.sleep(0.0002)
        assert driver[0].true_energy_joules(begin, time.monotonic()) > 0

    def test_true_energy_of_scripts_worked_out_by_hand(self, make_driver):
        device = make_driver(DeviceSpec(idle_watts=50.0))[0]
        start = time.monotonic() + 100
        device.set_load([(1.0, 100.0), (2.0, 300.0)], start_seconds=start)
        assert device.true_energy_joules(start - 2, start) == pytest.approx(100)
        assert device.true_energy_joules(start, start + 2) == pytest.approx(400)
        assert device.true_energy_joules(start + 2, start + 10) == pytest.approx(8 * 300)
        assert device.true_power_watts(start + 0.5) == 100
        device.set_load([(1.0, 100.0), (2.0, 300.0)], repeat=True, start_seconds=start)
        assert device.true_energy_joules(start + 0.5, start + 9.5) == pytest.approx(3 * 700)

    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(
        segments=st.lists(st.tuples(st.floats(1e-6, 3.0), st.floats(0, 1000)), min_size=1, max_size=6),
        repeat=st.booleans(),
        lead=st.floats(-20, 5),
        limit=st.floats(200, 700),
        offset=st.floats(-10, 10),
    )
    def test_c_and_python_compute_the_same_energy(self, driver, segments, repeat, lead, limit, offset):
        device: NvmlDevice = driver[0]
        device.set_load(segments, repeat=repeat, start_seconds=time.monotonic() + lead)
        device.power_limit_watts = limit
        moment = max(time.monotonic_ns() + round(offset * 1e9), device.read_regime_at(0).begin_nanoseconds)
        assert device.true_energy_picojoules_until(moment) == device.computed_in_c_picojoules_until(moment)

    def test_a_change_keeps_the_energy_until_then(self, driver, handle):
        device = driver[0]
        device.set_load([(0.001, 650.0), (0.001, 100.0)], repeat=True)
        moments = [time.monotonic_ns()]
        before = [device.true_energy_picojoules_until(moments[0])]
        for limit in (300_000, 500_000, 250_000):
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit)
            device.set_load(limit / 1000 + 50)
            moments.append(time.monotonic_ns())
            before.append(device.true_energy_picojoules_until(moments[-1]))
        device.set_load(0.0)
        assert [device.true_energy_picojoules_until(moment) for moment in moments] == before
        assert device.true_power_watts(moments[-1] / 1e9) == 250

    def test_load_is_held_below_the_enforced_limit(self, make_driver):
        free, held = make_driver(DeviceSpec(follows_limit=False), DeviceSpec(enforced_cap_watts=400.0))
        pynvml.nvmlInit()
        for device in (free, held):
            device.set_load(650.0)
        now = time.monotonic()
        assert (free.true_power_watts(now), held.true_power_watts(now)) == (650, 400)
        held.power_limit_watts = 300.0
        assert held.true_power_watts(time.monotonic()) == 300
        assert held.true_power_watts(now) == 400
        held.enforced_cap_watts = 250.0
        assert held.true_power_watts(time.monotonic()) == 250

    def test_history_that_is_forgotten_is_an_error(self, driver):
        begin = time.monotonic()
        for watts in range(4100):
            driver[0].set_load(watts)
        assert driver[0].true_power_watts(time.monotonic()) == 700
        with pytest.raises(ValueError, match="forgotten"):
            driver[0].true_energy_until(begin)

    def test_updates_of_a_counter_that_is_not_regular(self, make_driver):
        """Each within jitter and wander of its time, with the energy of a while before, in the time of the test."""
        spec = DeviceSpec(
            counter_period_seconds=0.1,
            counter_jitter_seconds=0.002,
            counter_wander_seconds=0.003,
            counter_age_seconds=0.004,
        )
        driver = make_driver(spec)
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        driver.set_clock(begin := 1000.0)
        driver[0].set_load(1000.0)
        late, latest = [], None
        for millisecond in range(1000, 25_000):
            driver.set_clock(begin + millisecond / 1000)
            millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            if millijoules != latest and latest is not None:
                counted_seconds = (millijoules / 1e3 - 1000.0 - driver[0].true_energy_until(begin)) / 700.0
                assert 0.004 <= millisecond / 1000 - counted_seconds <= 0.0051
                late.append(counted_seconds + 0.004 - round(counted_seconds, 1))
            latest = millijoules
        assert 238 <= len(late) <= 242
        assert -0.0051 <= min(late) <= -0.003
        assert 0.003 <= max(late) <= 0.0051

    @pytest.mark.parametrize("begin", [0.001, 1000.0, 1e8])
    def test_the_drivers_time_begins_with_that_of_the_test(self, make_driver, begin):
        """Whatever the uptime of the machine is."""
        driver = make_driver(DeviceSpec(counter_period_seconds=0, idle_watts=75.0))
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        driver.set_clock(begin)
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == 1_000_000
        driver.set_clock(begin + 1.0)
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == 1_075_000
        assert driver[0].true_energy_joules(begin, begin + 1.0) == 75.0

    def test_a_load_of_before_goes_on_in_the_time_of_the_test(self, make_driver):
        device = (driver := make_driver(DeviceSpec(idle_watts=75.0)))[0]
        device.set_load([(1.0, 100.0), (2.0, 300.0)], repeat=True)
        before = device.true_energy_until(time.monotonic())
        driver.set_clock(1e8)
        assert device.true_energy_joules(1e8, 1e8 + 3.5) == 750.0
        assert 0 <= device.true_energy_until(1e8) <= before

    def test_a_counter_of_a_module_counts_its_rest_too(self, make_driver):
        spec = DeviceSpec(limit_scopes="gpu and module", rest_of_module_watts=120.0, counter_period_seconds=0)
        driver = make_driver(spec)
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        driver[0].set_load(300.0)
        driver.set_clock(begin := 1000.0)
        first = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        driver.set_clock(begin + 10)
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - first == pytest.approx(4_200_000, abs=2)
        fields = pynvml.nvmlDeviceGetFieldValues(handle, [(186, 0), (186, 1), (186, 2)])
        assert [field.nvmlReturn for field in fields] == [0, 0, 3]
        assert [field.value.uiVal for field in fields[:2]] == [300_000, 420_000]

    def test_a_sensor_shows_too_much_and_spikes(self, driver, handle):
        def read() -> list[int]:
            return [pynvml.nvmlDeviceGetPowerUsage(handle) for _ in range(4)]

        driver[0].spike_power(9000.0, times=2, every=2)
        assert read() == [75_000, 9_000_000, 75_000, 9_000_000]
        driver[0].scale_power(10.0)
        assert read() == [750_000] * 4

    def test_a_counter_that_loses_energy_goes_on_from_where_it_stood(self, make_driver):
        driver = make_driver(DeviceSpec(counter_period_seconds=0))
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        driver.set_clock(begin := 1000.0)
        driver[0].set_load(100.0)
        before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        driver[0].stick_counter()
        driver.set_clock(begin + 1.0)
        driver[0].release_counter_with_a_loss()
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == before
        driver.set_clock(begin + 1.5)
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == before + 50_000

    def test_stuck_and_reset_counter(self, make_driver):
        device = make_driver(DeviceSpec(counter_period_seconds=0))[0]
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        device.stick_counter()
        stuck = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        time.sleep(0.002)
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == stuck
        device.release_counter()
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) > stuck
        device.reset_counter(to_joules=2.0)
        assert 2_000 <= pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) < stuck

    def test_absent_counter(self, driver, handle):
        driver[0].remove_counter()
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)


class TestPower:
    def test_usage_is_an_average_and_the_field_is_instant(self, driver, handle):
        device = driver[0]
        device.set_load([(10.0, 100.0), (100.0, 300.0)], start_seconds=time.monotonic() - 20)
        usage = pynvml.nvmlDeviceGetPowerUsage(handle)
        moment = last_moment(driver) / 1e9
        assert usage == pytest.approx(device.true_energy_joules(moment - 1, moment) * 1000, abs=1.5)
        average, instant, energy = pynvml.nvmlDeviceGetFieldValues(handle, [185, 186, 83])
        assert instant.value.uiVal == 300_000
        assert average.value.uiVal < 300_000
        assert energy.value.ullVal == device.counter_millijoules_at(last_moment(driver))
        assert [field.nvmlReturn for field in (average, instant, energy)] == [0, 0, 0]

    def test_older_gpus_have_no_field_and_no_average(self, make_driver):
        driver = make_driver(DeviceSpec(has_instant_power=False, power_average_seconds=0, architecture=5))
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        driver[0].set_load(222.0)
        assert pynvml.nvmlDeviceGetFieldValues(handle, [186])[0].nvmlReturn == 3
        assert pynvml.nvmlDeviceGetPowerUsage(handle) == 222_000
        assert pynvml.nvmlDeviceGetArchitecture(handle) == 5


class TestControl:
    def test_power_limit(self, driver, handle):
        assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [200_000, 700_000]
        assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) == 700_000
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_500)
        assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 300_500
        assert driver[0].power_limit_watts == 300.5
        driver[0].enforced_cap_watts = 250.0
        assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 250_000
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, 199_999)

    def test_clocks(self, driver, handle):
        assert pynvml.nvmlDeviceGetSupportedMemoryClocks(handle) == [3201, 1593]
        clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, 3201)
        assert clocks == list(driver[0].spec.sm_clocks_mhz)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, 1)
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, 345, 1200)
        assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) == 1200
        assert pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) == 1980
        assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) == 3201
        assert driver[0].locked_clock_mhz == 1200
        pynvml.nvmlDeviceResetGpuLockedClocks(handle)
        assert driver[0].locked_clock_mhz is None

    def test_persistence_mode(self, driver, handle):
        pynvml.nvmlDeviceSetPersistenceMode(handle, 0)
        assert pynvml.nvmlDeviceGetPersistenceMode(handle) == driver[0].persistence_mode == 0

    def test_control_needs_permission(self, driver, handle):
        driver[0].deny_control()
        for function, arguments in (
            (pynvml.nvmlDeviceSetPowerManagementLimit, [300_000]),
            (pynvml.nvmlDeviceSetGpuLockedClocks, [345, 1200]),
            (pynvml.nvmlDeviceResetGpuLockedClocks, []),
            (pynvml.nvmlDeviceSetPersistenceMode, [0]),
        ):
            with pytest.raises(pynvml.NVMLError_NoPermission):
                function(handle, *arguments)
        assert driver[0].power_limit_watts == 700
        driver[0].allow_control()
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000)


class TestFaults:
    def test_a_fault_happens_so_many_times_on_its_device(self, make_driver):
        driver = make_driver(DeviceSpec(), DeviceSpec())
        pynvml.nvmlInit()
        first, second = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in (0, 1))
        driver[0].fail("nvmlDeviceGetPowerUsage", 10, times=2)
        driver[0].fail("nvmlDeviceGetPowerUsage", 999, times=1)
        for kind in (pynvml.NVMLError_Timeout, pynvml.NVMLError_Timeout, pynvml.NVMLError_Unknown):
            assert pynvml.nvmlDeviceGetPowerUsage(second)
            with pytest.raises(kind):
                pynvml.nvmlDeviceGetPowerUsage(first)
        assert pynvml.nvmlDeviceGetPowerUsage(first)

    def test_a_fault_for_ever_can_be_cleared(self, driver):
        driver.fail("nvmlInit", 9)
        for _ in range(3):
            with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
                pynvml.nvmlInit()
        driver.clear_faults()
        pynvml.nvmlInit()

    def test_unknown_function_is_an_error(self, driver):
        with pytest.raises(ValueError, match="has no function 'nvmlDeviceGetPower'"):
            driver.fail("nvmlDeviceGetPower", 3)

    def test_a_lost_device_fails_every_call(self, driver, handle):
        driver[0].lose(time.monotonic() + 3600)
        assert pynvml.nvmlDeviceGetName(handle)
        driver[0].lose()
        for function in (pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetTotalEnergyConsumption):
            with pytest.raises(pynvml.NVMLError_GpuIsLost):
                function(handle)
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetCount() == 1
        driver[0].recover()
        assert pynvml.nvmlDeviceGetName(handle)

    def test_calls_that_hang_do_not_return_until_they_are_released(self, driver, handle):
        driver[0].hang("nvmlDeviceGetName")
        calling = threading.Thread(target=pynvml.nvmlDeviceGetName, args=(handle,))
        calling.start()
        assert pynvml.nvmlDeviceGetUUID(handle) == driver[0].uuid
        calling.join(0.02)
        assert calling.is_alive()
        driver[0].release()
        calling.join(30.0)
        assert not calling.is_alive()

    def test_latency(self, driver, handle):
        driver.set_latency(0.02, "nvmlDeviceGetName")
        begin = time.monotonic()
        pynvml.nvmlDeviceGetName(handle)
        assert time.monotonic() - begin >= 0.02


FORK = """
import os, pynvml
pynvml.nvmlInit()
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
try:
    pynvml.nvmlDeviceGetCount()
except pynvml.NVMLError_Uninitialized:
    pynvml.nvmlInit()
    print("uninitialised, then", pynvml.nvmlDeviceGetCount(), flush=True)
"""

READ_AND_CHANGE = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetPowerManagementLimit(handle))
pynvml.nvmlDeviceSetPowerManagementLimit(handle, 222_000)
"""

CALL_FOR_EVER = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000)
print("calling", flush=True)
while True:
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000)
    pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
"""

DIE_WITH_THE_LOCK = """
import os, signal
from pathlib import Path
from tests.nvml_driver.driver import map_state
from tests.nvml_driver.library import open_library
library = open_library(Path(os.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0]) / "libnvidia-ml.so.1")
state = map_state(Path(os.environ["ZEUS_TEST_NVML_STATE"]))  # mapped until the end, or nobody learns of it
library.zeus_test_nvml_lock(state)
os.kill(os.getpid(), signal.SIGKILL)
"""


class TestProcesses:
    def test_uninitialised(self, make_driver):
        make_driver()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 1
        pynvml.nvmlShutdown()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlShutdown()

    def test_a_forked_process_must_initialise_again(self, driver):
        assert driver.run(FORK) == "uninitialised, then 1"

    def test_sessions_can_be_forgotten(self, driver):
        driver.forget_sessions()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()

    def test_two_processes_see_each_others_limits(self, driver, handle):
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, 333_000)
        assert driver.run(READ_AND_CHANGE) == "333000"
        assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 222_000

    def test_a_process_killed_while_it_calls_blocks_nobody(self, driver, handle):
        processes = [driver.start(CALL_FOR_EVER) for _ in range(3)]
        for process in processes:
            assert process.stdout.readline() == "calling\n"
            process.kill()
            process.communicate()
            assert process.returncode == -signal.SIGKILL
            assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 300_000
        now = time.monotonic_ns()
        driver[0].set_load(100.0)
        assert driver[0].read_regime_at(now).energy_until(now) > 0

    def test_a_process_killed_with_the_lock_blocks_nobody(self, driver, handle):
        process = driver.start(DIE_WITH_THE_LOCK)
        process.communicate(timeout=240)
        assert process.returncode == -signal.SIGKILL
        assert pynvml.nvmlDeviceGetPowerUsage(handle)
        driver[0].set_load(100.0)


class TestLog:
    def test_calls_are_logged(self, driver, handle):
        driver[0].fail("nvmlDeviceGetPowerUsage", 999, times=1)
        driver.clear_calls()
        begin = time.monotonic_ns()
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000)
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlDeviceGetPowerUsage(handle)
        pynvml.nvmlDeviceGetCount()
        calls = driver.calls()
        assert [tuple(call[1:]) for call in calls] == [
            (os.getpid(), "nvmlDeviceSetPowerManagementLimit", 0, 300_000, 0),
            (os.getpid(), "nvmlDeviceGetPowerUsage", 0, 0, 999),
            (os.getpid(), "nvmlDeviceGetCount", None, 0, 0),
        ]
        moments = [begin, *(call.nanoseconds for call in calls), time.monotonic_ns()]
        assert moments == sorted(moments)
        assert driver.calls("nvmlDeviceGetPowerUsage") == driver.calls(device_index=0)[1:] == calls[1:2]

    def test_the_log_keeps_the_latest(self, driver, handle):
        driver.clear_calls()
        for _ in range(16384):
            pynvml.nvmlDeviceGetIndex(handle)
        pynvml.nvmlDeviceGetCount()
        assert driver.call_count == 16385
        calls = driver.calls()
        assert (len(calls), calls[-1].function) == (16384, "nvmlDeviceGetCount")


def test_a_program_that_still_runs_ends_with_its_driver(nvml_library, tmp_path):
    with NvmlDriver(tmp_path, library=nvml_library) as driver:
        process = driver.start("while True: pass")
    assert process.poll() == -signal.SIGKILL
