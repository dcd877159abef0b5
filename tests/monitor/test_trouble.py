"""Everything that goes wrong with a device loses that device's part of a window, and raises nothing."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.variants import long_but_first
from zeus_core.device import discover_cpus
from zeus_core.device.nvml.nvml_gpu import NvmlGpu
from zeus_core.device.nvml.nvml_session import NvmlSession
from zeus_core.errors import DeviceLostError, UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import FakeRapl, FaultyGpu, VirtualTime

# One code per kind of consequence: a session to open again, a function that is missing, a right that is missing,
# a driver that is not there, a GPU that is lost, a fault that may pass, and a code of a newer driver.
NVML_CODES = [1, 3, 4, 9, 15, 999, 12345]
CALLS = ["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage", None]


def nvml_monitor(driver, **arguments):
    session = NvmlSession()
    return ZeusMonitor(gpus=[NvmlGpu(session, device.uuid) for device in driver], **arguments)


class Monitored:
    """A driver and its monitor in one virtual time. What is lost of a window depends on how long it takes."""

    def __init__(self, driver):
        self.driver, self.time_source = driver, VirtualTime()
        self.advance(0.0)
        self.monitor = nvml_monitor(driver, time_source=self.time_source)

    def advance(self, seconds):
        self.time_source.advance(seconds)
        self.driver.set_clock(self.time_source.now())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", NVML_CODES)
def test_no_error_of_the_driver_leaves_a_window(make_driver, call, code):
    driver = make_driver(DeviceSpec(counter_period_seconds=0), DeviceSpec(counter_period_seconds=0))
    monitored = Monitored(driver)
    monitor = monitored.monitor
    driver[0].fail(call, code)
    monitor.begin_window("begun in trouble")
    driver.clear_faults()
    monitored.advance(0.01)
    monitor.begin_window("begun well")
    monitored.advance(0.01)
    driver[0].fail(call, code)
    ends = [monitor.end_window("begun well"), monitor.end_window("begun in trouble")]
    driver.clear_faults()
    for measurement in ends:
        assert measurement.gpu_energy[1] is not None
        assert measurement.of("gpu")[1].method == "counted"
        if call in {CALLS[0], None}:
            assert measurement.gpu_energy[0] is None
            assert f"NVML error {code}" in measurement.lost_because["GPU 0"]
        else:
            assert measurement.of("gpu")[0].method == "counted", "the counter alone is enough"


def test_a_gpu_that_disappears_within_a_window_is_lost_and_others_remain(make_driver):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    monitored = Monitored(driver)
    monitored.monitor.begin_window("window")
    monitored.advance(0.15)
    driver[0].lose()
    measurement = monitored.monitor.end_window("window")
    assert measurement.gpu_energy[0] is None
    assert "fell off the bus" in measurement.lost_because["GPU 0"]
    assert measurement.gpu_energy[1] > 0


def test_a_loss_is_reported_once_and_not_at_every_window(make_driver, caplog):
    driver = make_driver(DeviceSpec())
    monitor = nvml_monitor(driver)
    driver[0].lose()
    for number in range(5):
        with monitor.window(f"{number}") as window:
            pass
        assert window.measurement.gpu_energy == {0: None}
    assert caplog.text.count("is lost for window") == 1


@pytest.mark.real_time
def test_a_gpu_without_a_counter_is_sampled_until_the_accelerator_is_done(make_driver):
    driver = make_driver(DeviceSpec(has_energy_counter=False, follows_limit=False))
    gpu = NvmlGpu(NvmlSession(), driver[0].uuid)

    def compute(_):
        until = time.monotonic() + 240
        while len(driver.calls("nvmlDeviceGetFieldValues")) < 8:
            assert time.monotonic() < until
            time.sleep(0.01)

    monitor = ZeusMonitor(gpus=[gpu], synchronize=compute)
    driver[0].set_load([(0.1, 100.0), (0.1, 600.0)], repeat=True)
    driver.clear_calls()
    monitor.begin_window("window", sync_execution=False)
    begun = time.monotonic()
    measurement = monitor.end_window("window")
    truth = driver[0].true_energy_joules(begun, time.monotonic())
    # Fifteen samples a second of a load that changes ten times a second: how far they are off depends on their phase.
    assert measurement.total_energy == pytest.approx(truth, abs=measurement.total_uncertainty_joules)


def test_a_stuck_counter_is_lost_not_zero(make_driver):
    driver = make_driver(DeviceSpec())
    monitored = Monitored(driver)
    driver[0].stick_counter()
    with monitored.monitor.window("window") as window:
        monitored.advance(0.5)
    assert window.measurement.gpu_energy == {0: None}
    assert "stood still" in window.measurement.lost_because["GPU 0"]


def test_a_counter_that_is_reset_is_lost_not_negative(make_driver):
    driver = make_driver(DeviceSpec())
    monitored = Monitored(driver)
    monitored.monitor.begin_window("window")
    monitored.advance(0.05)
    driver[0].reset_counter(to_joules=0.0)
    measurement = monitored.monitor.end_window("window")
    assert measurement.gpu_energy == {0: None}
    assert "went back" in measurement.lost_because["GPU 0"]


@pytest.mark.parametrize("trouble", ["stands still", "starts again"])
def test_what_an_inner_window_loses_the_outer_one_does_not_count(make_driver, trouble):
    driver = make_driver(DeviceSpec(follows_limit=False))
    driver[0].set_load(400.0)
    monitor = nvml_monitor(driver)
    monitor.begin_window("outer")
    begun = time.monotonic()
    time.sleep(0.7)
    monitor.begin_window("inner")
    if trouble == "stands still":
        driver[0].stick_counter()
    else:
        driver[0].reset_counter(to_joules=1000.0)  # lower than before, but higher by the end than at the beginning
    time.sleep(0.5)
    inner = monitor.end_window("inner")
    time.sleep(0.3)
    ending = time.monotonic()
    outer = monitor.end_window("outer")
    least, most = driver[0].true_energy_joules(begun, ending), driver[0].true_energy_joules(begun, time.monotonic())
    assert inner.of("gpu")[0].method in {"estimated", "lost"}
    assert outer.of("gpu")[0].method in {"estimated", "lost"}
    if outer.total_energy is not None:
        uncertainty = outer.total_uncertainty_joules
        assert least - uncertainty <= outer.total_energy <= most + uncertainty


@pytest.mark.parametrize("lacking", ["read_energy_counter_joules", "read_power_watts"])
def test_precise_on_a_gpu_without_readings_is_an_error_at_construction(gpu, time_source, lacking):
    from zeus_core.errors import NotSupportedError

    faulty = FaultyGpu(gpu)
    faulty.fail(lacking, NotSupportedError("not on this board"))
    with pytest.raises(UsageError, match="precise=True needs an energy counter and a power reading of the moment"):
        ZeusMonitor(gpus=[faulty], time_source=time_source, precise=True)


def test_a_gpu_with_neither_counter_nor_power_is_lost_with_the_reason(gpu, time_source):
    from zeus_core.errors import NotSupportedError

    faulty = FaultyGpu(gpu)
    for reading in ("read_energy_counter_joules", "read_power_watts"):
        faulty.fail(reading, NotSupportedError("not on this board"))
    monitor = ZeusMonitor(gpus=[faulty], time_source=time_source)
    with monitor.window("window") as window:
        time_source.advance(1)
    assert window.measurement.gpu_energy == {0: None}
    assert "no power reading" in window.measurement.lost_because["GPU 0"]


@pytest.mark.parametrize("precise", [False, True])
def test_a_forked_child_measures_with_a_session_of_its_own(make_driver, precise):
    driver = make_driver(DeviceSpec(), DeviceSpec(has_energy_counter=False) if not precise else DeviceSpec())
    monitor = nvml_monitor(driver, precise=precise)
    monitor.begin_window("of the parent")
    child = os.fork()
    if child == 0:
        try:
            with monitor.window("of the child") as window:
                time.sleep(0.2)
            os._exit(0 if window.measurement.total_energy > 0 else 3)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    assert monitor.end_window("of the parent").total_energy > 0


@pytest.mark.parametrize("precise", long_but_first([False, True]))
def test_a_fork_while_the_sampler_reads_a_slow_driver_hangs_no_child(make_driver, precise):
    driver = make_driver(*[DeviceSpec(has_energy_counter=precise) for _ in range(2)])
    monitor = nvml_monitor(driver, precise=precise)
    driver.set_latency(0.002)
    monitor.begin_window("of the parent")
    for _ in range(15):
        child = os.fork()
        if child == 0:
            signal.alarm(240)
            with monitor.window("of the child"):
                time.sleep(0.001)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    monitor.end_window("of the parent")


def test_a_window_that_ends_while_the_interpreter_ends_is_measured(make_driver):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    program = """
import atexit
from zeus_core.monitor import ZeusMonitor
monitor = ZeusMonitor()
monitor.begin_window("program")
atexit.register(lambda: print(monitor.end_window("program").gpu_energy))
"""
    driver.set_latency(0.002)
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **driver.environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.stdout.startswith("{0: "), finished.stderr
    assert finished.stderr == ""


def test_windows_of_several_threads_do_not_meet(make_driver):
    driver = make_driver(DeviceSpec(), DeviceSpec(has_energy_counter=False))
    monitor = nvml_monitor(driver)
    failures = []

    def measure(number):
        try:
            for turn in range(20):
                with monitor.window(f"{number}.{turn}") as window:
                    time.sleep(0.002)
                assert window.measurement.total_energy > 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_at_most_two_driver_calls_are_made_at_an_edge(make_driver):
    driver = make_driver(DeviceSpec())
    monitor = Monitored(driver).monitor  # nothing is read in the background
    driver.clear_calls()
    monitor.begin_window("window")
    assert driver.call_count == 2
    monitor.end_window("window")
    assert driver.call_count == 4


def test_slow_devices_are_read_at_the_same_time(make_driver):
    driver = make_driver(*[DeviceSpec() for _ in range(8)])
    monitor = Monitored(driver).monitor
    driver.set_latency(0.005)
    with monitor.window("to find out that calls are slow"):
        pass
    driver.clear_calls()
    monitor.begin_window("window")
    moments = [call.seconds for call in driver.calls("nvmlDeviceGetTotalEnergyConsumption")]
    assert len(moments) == 8
    monitor.end_window("window")
    assert len({call.process_id for call in driver.calls()}) == 1


class TestCpus:
    @pytest.fixture
    def rapl(self, tmp_path):
        return FakeRapl(tmp_path / "machine")

    def measure(self, rapl, action=lambda: None, **arguments):
        time_source = VirtualTime()
        cpus = discover_cpus(rapl.root, rapl.read_text)
        monitor = ZeusMonitor(gpu_indices=[], cpus=cpus, time_source=time_source, **arguments)
        with monitor.window("window") as window:
            action()
            time_source.advance(0.01)
        return window.measurement

    def test_packages_and_dram_are_counted(self, rapl):
        packages = [rapl.add_package(0), rapl.add_package(1)]
        dram = rapl.add_zone("dram", within=packages[1])

        def burn():
            rapl.add_energy(packages[0], 5_000_000)
            rapl.add_energy(packages[1], 7_000_000)
            rapl.add_energy(dram, 1_500_000)

        measurement = self.measure(rapl, burn)
        assert measurement.cpu_energy == {0: 5.0, 1: 7.0}
        assert measurement.dram_energy == {1: 1.5}
        assert [energy.method for energy in measurement.of("cpu").values()] == ["counted", "counted"]
        assert measurement.of("cpu")[0].uncertainty_joules == pytest.approx(1.0), "a millisecond at each edge, at 500 W"
        assert measurement.node_energy_joules == pytest.approx(13.5)

    def test_indices_choose_packages(self, rapl):
        rapl.add_package(0)
        rapl.add_package(1)
        assert list(self.measure(rapl, cpu_indices=[1]).cpu_energy) == [1]
        with pytest.raises(UsageError, match="cpu_indices is \\[2\\], but there is no CPU package 2; there are: 0, 1"):
            self.measure(rapl, cpu_indices=[2])

    def test_without_rights_cpus_are_absent_and_asking_for_them_says_why(self, rapl, caplog):
        package = rapl.add_package(0)
        rapl.make_unreadable(package)
        with caplog.at_level("INFO", logger="zeus_core"):
            measurement = self.measure(rapl)
        assert measurement.cpu_energy is None
        assert measurement.node_energy_joules is None
        assert "CPU energy is not measured" in caplog.text
        assert "chmod" in caplog.text
        with pytest.raises(UsageError, match=r"no CPU can be measured: .*chmod"):
            self.measure(rapl, cpu_indices=[0])

    def test_a_counter_that_vanishes_within_a_window_is_lost(self, rapl):
        package = rapl.add_package(0)
        measurement = self.measure(rapl, lambda: rapl.remove(package))
        assert measurement.cpu_energy == {0: None}
        assert measurement.of("cpu")[0].method == "lost"
        assert "CPU 0" in measurement.lost_because
        assert measurement.node_energy_joules is None


class TestDecorator:
    def test_each_call_is_a_window_of_its_own(self, monitor, time_source):
        measurements = []

        @monitor.measured("countdown", report=measurements.append)
        def countdown(n):
            time_source.advance(1.0)
            return n if n == 0 else countdown(n - 1)

        assert countdown(2) == 0
        assert countdown.__name__ == "countdown"
        assert [round(measurement.time) for measurement in measurements] == [1, 2, 3]

    def test_a_call_that_raises_is_not_reported(self, monitor):
        measurements = []

        @monitor.measured("broken", report=measurements.append)
        def broken():
            raise DeviceLostError("the function's own")

        with pytest.raises(DeviceLostError):
            broken()
        assert measurements == []
        with pytest.raises(UsageError, match="open windows: none"):
            monitor.end_window("x")


def test_differences_and_sums_keep_what_is_known(monitor, gpu, work):
    with monitor.window("outer") as outer:
        gpu.execute(work)
        with monitor.window("inner") as inner:
            for _ in range(4):
                gpu.execute(work)
    rest = outer.measurement - inner.measurement
    assert rest.time == pytest.approx(gpu.preset.physics.operating_point(work, 350).seconds)
    assert rest.total_uncertainty_joules == pytest.approx(
        outer.measurement.total_uncertainty_joules + inner.measurement.total_uncertainty_joules
    )
    total = sum([inner.measurement, inner.measurement])
    assert total.total_energy == 2 * inner.measurement.total_energy


def test_a_jetson_says_once_that_it_has_no_power(make_driver, caplog):
    spec = DeviceSpec("Orin (nvgpu)", has_energy_counter=False, has_instant_power=False, has_power_limit=False)
    driver = make_driver(spec)
    driver.fail("nvmlDeviceGetPowerUsage", 3)
    monitor = nvml_monitor(driver)
    for _ in range(3):
        with monitor.window("step") as window:
            pass
        assert window.measurement.total_energy is None
    assert caplog.text.count("power is not reported through NVML on Jetson") == 1


def test_a_container_that_loses_its_devices_in_a_window_says_the_cure(make_driver, caplog):
    driver = make_driver(DeviceSpec())
    monitored = Monitored(driver)
    monitored.monitor.begin_window("step")
    monitored.advance(0.01)
    driver.fail(None, 999)
    assert monitored.monitor.end_window("step").total_energy is None
    assert "restart the container" in caplog.text
