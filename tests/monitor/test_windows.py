"""Windows of the monitor, measured against what the simulated GPU knows to be true."""

import copy
import csv
import json
import pickle
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.device import SimulatedGpu, Work, discover_cpus, find_preset
from zeus_core.errors import DeviceLostError, DriverFaultError, NoDeviceError, NotSupportedError, UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import NoMonitor, training_monitor
from zeus_core.testing import FakeRapl, FaultyGpu, VirtualTime

A100_PEAK_WATTS = 400 * find_preset("A100").physics.regulated_fraction


def test_a_window_measures_time_and_energy(monitor, gpu, work):
    monitor.begin_window("step")
    before = gpu.exact_energy_joules()
    for _ in range(100):
        gpu.execute(work)
    true_energy = gpu.exact_energy_joules() - before
    measurement = monitor.end_window("step")
    assert measurement.time == pytest.approx(100 * gpu.preset.physics.operating_point(work, 350).seconds)
    assert measurement.total_energy == pytest.approx(true_energy, rel=0.002)
    assert measurement.gpu_energy == {0: measurement.total_energy}
    assert measurement.of("gpu")[0].method == "counted"


def test_nested_and_overlapping_windows_are_each_right(monitor, gpu, work):
    true_at = {}

    def mark(name):
        true_at[name] = gpu.exact_energy_joules()

    monitor.begin_window("outer")
    mark("outer begins")
    gpu.execute(work)
    monitor.begin_window("inner")
    mark("inner begins")
    for _ in range(20):
        gpu.execute(work)
    monitor.begin_window("late")
    mark("late begins")
    inner = monitor.end_window("inner")
    mark("inner ends")
    for _ in range(20):
        gpu.execute(work)
    outer = monitor.end_window("outer")
    late = monitor.end_window("late")
    mark("all end")
    for measurement, begin, end in [
        (outer, "outer begins", "all end"),
        (inner, "inner begins", "inner ends"),
        (late, "late begins", "all end"),
    ]:
        assert abs(measurement.total_energy - (true_at[end] - true_at[begin])) <= measurement.total_uncertainty_joules


@given(seed=st.integers(0, 10_000), index=st.integers(0, 7))
def test_energy_errs_per_edge_by_at_most_one_counter_period_at_peak(seed, index):
    chance = random.Random(seed)
    time_source = VirtualTime(chance.uniform(0, 100))
    gpu = SimulatedGpu(find_preset("A100"), index=index, time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    time_source.advance(chance.uniform(0, 1))
    monitor.begin_window("window")
    before = gpu.exact_energy_joules()
    for _ in range(chance.randint(1, 30)):
        gpu.execute(Work(chance.uniform(0.001, 0.3), chance.uniform(150, 500), chance.uniform(0.3, 1)))
        time_source.advance(chance.choice([0.0, chance.uniform(0, 0.3)]))
    true_energy = gpu.exact_energy_joules() - before
    measurement = monitor.end_window("window")
    edges_joules = 2 * gpu.energy_counter_period_seconds * A100_PEAK_WATTS
    assert abs(measurement.total_energy - true_energy) <= edges_joules


@pytest.mark.parametrize("model", ["V100", "A100"])  # counters that are updated every 20 and every 100 ms
@pytest.mark.parametrize("phase_seconds", [0.0, 0.013, 0.05, 0.099])
def test_ten_seconds_are_within_one_percent(model, phase_seconds):
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset(model), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    time_source.advance(phase_seconds)
    with monitor.window("ten seconds") as window:
        before = gpu.exact_energy_joules()
        began = time_source.now()
        while time_source.now() - began < 10:
            gpu.execute(Work(0.037, 330.0, 0.8, 0.7))
        true_energy = gpu.exact_energy_joules() - before
    assert window.measurement.total_energy == pytest.approx(true_energy, rel=0.01)


def test_a_window_without_counter_steps_is_estimated_and_reported_as_such(monitor, gpu, work):
    gpu.submit(work)
    latest = gpu.read_energy_counter_joules()
    while gpu.read_energy_counter_joules() == latest:
        monitor.time_source.advance(0.001)
    monitor.begin_window("short")
    monitor.time_source.advance(0.01)
    measurement = monitor.end_window("short")
    assert measurement.of("gpu")[0].method == "estimated"
    assert measurement.total_energy == pytest.approx(0.01 * gpu.read_power_watts())


def test_a_fault_loses_the_energy_of_that_gpu_alone(time_source, gpu, work, caplog):
    faulty = FaultyGpu(gpu)
    other = SimulatedGpu(find_preset("A40"), index=1, time_source=time_source)
    monitor = ZeusMonitor(gpus=[faulty, other], time_source=time_source)
    monitor.begin_window("window")
    other.execute(work)
    faulty.fail("read_energy_counter_joules", DeviceLostError("GPU fell off the bus"))
    measurement = monitor.end_window("window")
    assert measurement.gpu_energy[0] is None
    assert [energy.method for energy in measurement.of("gpu").values()] == ["lost", "counted"]
    assert measurement.gpu_energy[1] > 0
    assert measurement.total_energy is None
    assert measurement.average_power_watts is None
    assert "fell off the bus" in caplog.text


def test_a_counter_that_goes_back_is_lost_not_negative(time_source, gpu, work):
    class Reloaded(FaultyGpu):
        offset_joules = 0.0

        def read_energy_counter_joules(self):
            return super().read_energy_counter_joules() - self.offset_joules

    reloaded = Reloaded(gpu)
    monitor = ZeusMonitor(gpus=[reloaded], time_source=time_source)
    gpu.execute(work)
    monitor.begin_window("window")
    gpu.execute(work)
    reloaded.offset_joules = 1e6
    measurement = monitor.end_window("window")
    assert measurement.gpu_energy == {0: None}
    assert measurement.of("gpu")[0].method == "lost"


def test_a_gpu_without_a_counter_has_its_power_integrated(time_source, gpu, work):
    faulty = FaultyGpu(gpu)
    faulty.fail("read_energy_counter_joules", NotSupportedError("no counter"))
    monitor = ZeusMonitor(gpus=[faulty], time_source=time_source)
    with monitor.window("idle") as window:
        time_source.advance(2.0)
    assert window.measurement.total_energy == pytest.approx(2 * gpu.preset.physics.blocking_power_watts, rel=1e-4)
    assert window.measurement.of("gpu")[0].method == "integrated"


def test_a_power_reading_that_fails_leaves_a_counted_energy(time_source, gpu, work):
    faulty = FaultyGpu(gpu)
    faulty.fail("read_power_watts", DriverFaultError("for once"))
    monitor = ZeusMonitor(gpus=[faulty], time_source=time_source)
    with monitor.window("window") as window:
        gpu.execute(work)
    assert window.measurement.of("gpu")[0].method == "counted"


def test_with_a_window_that_is_left_by_an_exception_nothing_stays_open(monitor):
    with pytest.raises(RuntimeError, match="boom"), monitor.window("epoch") as window:
        raise RuntimeError("boom")
    with pytest.raises(UsageError, match="'epoch' has no measurement"):
        _ = window.measurement
    monitor.begin_window("epoch")


def test_wrong_use_of_windows_is_named(monitor):
    monitor.begin_window("epoch")
    with pytest.raises(ValueError, match=r"'epoch' is already open.*restart=True"):
        monitor.begin_window("epoch")
    with pytest.raises(ValueError, match="'step' is not open; open windows: 'epoch'"):
        monitor.end_window("step")
    monitor.end_window("epoch")
    with pytest.raises(UsageError, match="'epoch' is not open; open windows: none"):
        monitor.end_window("epoch")


def test_restart_begins_a_window_anew(monitor, time_source):
    monitor.begin_window("cell")
    time_source.advance(5)
    monitor.begin_window("cell", restart=True)
    time_source.advance(1)
    assert monitor.end_window("cell").time == pytest.approx(1)
    monitor.begin_window("cell")
    time_source.advance(5)
    monitor.restart("cell")
    time_source.advance(2)
    assert monitor.end_window("cell").time == pytest.approx(2)


def test_no_thread_reads_counters_in_virtual_time(monitor):
    others = set(threading.enumerate())
    monitor.begin_window("step")
    assert "zeus-core sampler" not in [each.name for each in set(threading.enumerate()) - others]
    monitor.end_window("step")


def test_cancelled_windows_are_forgotten(monitor, time_source, tmp_path, gpu):
    log = tmp_path / "log.csv"
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source, log_file=log)
    monitor.begin_window("a")
    cancelled = monitor.end_window("a", cancel=True)
    assert (cancelled.time, cancelled.gpu_energy, cancelled.total_energy) == (0, {0: 0.0}, 0.0)
    assert cancelled.soc_energy is None
    monitor.begin_window("b")
    monitor.cancel("b")
    monitor.cancel("never begun")
    monitor.begin_window("c")
    monitor.reset_windows()
    monitor.begin_window("a")
    monitor.begin_window("b")
    monitor.begin_window("c")
    assert len(log.read_text().splitlines()) == 1


def test_both_edges_wait_for_the_accelerator_first(gpu, time_source, work):
    waits = []

    def synchronize(indices):
        waits.append(list(indices))
        gpu.synchronize()

    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source, synchronize=synchronize)
    monitor.begin_window("step")
    gpu.submit(work)
    measurement = monitor.end_window("step")
    assert measurement.time == pytest.approx(gpu.preset.physics.operating_point(work, 350).seconds)
    monitor.begin_window("step", sync_execution=False)
    monitor.end_window("step", sync_execution=False)
    assert waits == [[0], [0]]


def test_a_csv_log_has_the_published_columns(gpu, time_source, tmp_path):
    log = tmp_path / "new folder" / "log.csv"
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source, log_file=str(log))
    with monitor.window("a, b") as window:
        time_source.advance(3)
    with log.open() as file:
        (row,) = csv.DictReader(file)
    assert list(row) == ["start_time", "window_name", "elapsed_time", "gpu0_energy"]
    assert row["window_name"] == "a, b"
    assert float(row["elapsed_time"]) == window.measurement.time
    assert float(row["gpu0_energy"]) == window.measurement.total_energy


def test_a_json_lines_log_holds_method_and_uncertainty(gpu, time_source, tmp_path):
    log = tmp_path / "log.jsonl"
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source, log_file=log)
    for _ in range(2):
        with monitor.window("w"):
            time_source.advance(3)
    first, _second = map(json.loads, log.read_text().splitlines())
    assert (first["window_name"], first["time"]) == ("w", pytest.approx(3))
    (energy,) = first["devices"].values()
    assert energy["method"] == "counted"
    assert energy["uncertainty_joules"] > 0


def test_two_monitors_may_share_a_log(gpu, time_source, tmp_path):
    log = tmp_path / "log.csv"
    monitors = [ZeusMonitor(gpus=[gpu], time_source=time_source, log_file=log) for _ in range(2)]
    for monitor in [*monitors, ZeusMonitor(gpus=[gpu], time_source=time_source, log_file=log)]:
        with monitor.window("w"):
            time_source.advance(1)
    assert len(log.read_text().splitlines()) == 1 + 3


def test_a_window_name_the_file_cannot_hold_loses_nothing(gpu, time_source, tmp_path):
    for name in ("log.csv", "log.jsonl"):
        monitor = ZeusMonitor(gpus=[gpu], time_source=time_source, log_file=tmp_path / name)
        with monitor.window("x\ud800") as window:
            time_source.advance(1)
        assert window.measurement.time == pytest.approx(1)
        assert "ud800" in (tmp_path / name).read_text()


def test_an_unwritable_log_file_is_an_error_at_construction(gpu, tmp_path):
    with pytest.raises(UsageError, match="log_file is"):
        ZeusMonitor(gpus=[gpu], log_file=tmp_path)


@pytest.mark.parametrize(
    ("gpu_indices", "message"),
    [([1], "there is no GPU 1; there are: 0"), ([-1], r"gpu_indices\[0\] is -1"), (["0"], "is '0'"), ([0, 0], "twice")],
)
def test_wrong_gpu_indices_are_named(gpu, gpu_indices, message):
    with pytest.raises(UsageError, match=message):
        ZeusMonitor(gpu_indices, gpus=[gpu])


def test_an_unknown_framework_is_named(gpu):
    with pytest.raises(UsageError, match="sync_execution_with is 'tensorflow'"):
        ZeusMonitor(gpus=[gpu], sync_execution_with="tensorflow")


@pytest.mark.parametrize(
    "environment",
    [
        {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
        {"LOCAL_RANK": "1", "LOCAL_SIZE": "2", "WORLD_SIZE": "4"},
        {"LOCAL_RANK": "1", "WORLD_SIZE": "2"},
    ],
)
def test_of_several_ranks_each_measures_its_own_gpu_and_says_so(time_source, monkeypatch, caplog, environment):
    caplog.set_level("INFO")
    gpus = [SimulatedGpu(find_preset("A40"), index=index, time_source=time_source) for index in range(2)]
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ZeusMonitor(gpus=gpus, time_source=time_source).gpu_indices == [1]
    assert "local rank 1 of 2 measures GPU 1 alone" in caplog.text
    assert ZeusMonitor(gpu_indices=[0, 1], gpus=gpus, time_source=time_source).gpu_indices == [0, 1]


def test_an_empty_machine_is_no_device():
    with pytest.raises(NoDeviceError, match="gpu_indices=\\[\\]"):
        ZeusMonitor(gpus=[])


def test_without_a_gpu_construction_says_how_to_simulate(monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoDeviceError, match="ZEUS_SIMULATED_GPUS"):
        ZeusMonitor()


def test_without_a_gpu_cpus_are_measured_after_one_warning(tmp_path, time_source, monkeypatch, caplog):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rapl = FakeRapl(tmp_path)
    package = rapl.add_package(0)
    cpus = discover_cpus(rapl.root, read_text=rapl.read_text)
    monitor = ZeusMonitor(cpus=cpus, time_source=time_source)
    (warning,) = caplog.records
    assert "no GPU is measured, and CPUs are: " in warning.getMessage()
    with monitor.window("w") as window:
        time_source.advance(1)
        rapl.add_energy(package, 40_000_000)
    assert (window.measurement.gpu_energy, window.measurement.cpu_energy) == ({}, {0: pytest.approx(40, abs=1)})
    assert window.measurement.total_energy == 0
    for arguments in ({"gpu_indices": [0]}, {"cpu_indices": []}, {"gpus": []}):
        with pytest.raises(NoDeviceError):
            ZeusMonitor(cpus=cpus, **arguments)
    assert isinstance(training_monitor(monitor), NoMonitor)
    with pytest.raises(NoDeviceError):
        training_monitor(monitor, strict=True)


@pytest.mark.parametrize("is_window", [False, True])
def test_cpu_counters_that_wrap_between_two_readings_are_followed(gpu, time_source, tmp_path, is_window):
    rapl = FakeRapl(tmp_path)
    package = rapl.add_package(0, max_energy_range=65_000_000_000)
    monitor = ZeusMonitor(gpus=[gpu], cpus=discover_cpus(rapl.root, rapl.read_text), time_source=time_source)
    first = monitor.read()
    if is_window:
        monitor.begin_window("w")
    for _ in range(40):
        rapl.add_energy(package, 6_000_000_000)
        time_source.advance(30.0)
    measurement = monitor.end_window("w") if is_window else monitor.between(first, monitor.read())
    assert measurement.cpu_energy[0] == pytest.approx(240_000)


def test_cpu_counters_are_kept_from_the_first_window_on(gpu, tmp_path):
    class CountingTime(VirtualTime):
        repeated = 0

        def repeatedly(self, action, period_seconds):
            self.repeated += 1
            return super().repeatedly(action, period_seconds)

    rapl, time_source = FakeRapl(tmp_path), CountingTime()
    rapl.add_package(0)
    monitor = ZeusMonitor(gpus=[gpu], cpus=discover_cpus(rapl.root, rapl.read_text), time_source=time_source)
    assert time_source.repeated == 0
    monitor.begin_window("w")
    assert time_source.repeated == 1


def test_no_gpus_on_purpose_measures_time_alone(time_source):
    monitor = ZeusMonitor(gpu_indices=[], time_source=time_source)
    with monitor.window("w") as window:
        time_source.advance(1)
    assert window.measurement.time == pytest.approx(1)
    assert window.measurement.gpu_energy == {}


def test_the_background_samples_at_uneven_times_and_leaves_the_programs_chance_alone():
    from zeus_core.monitor._instruments import _uneven_wait

    class Waits(list):
        def wait(self, seconds):
            self.append(seconds)

    state, waits, wait = random.getstate(), Waits(), _uneven_wait()
    for _ in range(200):
        wait(waits, 0.05)
    assert random.getstate() == state
    assert min(waits) < 0.03 < 0.07 < max(waits)
    assert sum(waits) / len(waits) == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_monitor_says_that_it_cannot_be_copied(make_driver, copied):
    make_driver()
    with pytest.raises(TypeError, match=r"a ZeusMonitor cannot be copied or sent to another process; make one there"):
        copied({"monitor": ZeusMonitor()}["monitor"])
