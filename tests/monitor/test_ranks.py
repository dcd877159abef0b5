"""Several real processes over gloo that share devices: each device is counted once."""

import multiprocessing
import os
import time

import pytest
import torch.distributed

from tests.nvml_driver import DeviceSpec
from zeus_core.device import discover_cpus
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor, measure_job
from zeus_core.ports.world import SoloWorld
from zeus_core.pytorch.torch_world import TorchWorld
from zeus_core.testing import FakeRapl

LOADS = [[(0.3, 500.0), (0.1, 300.0)], [(1.0, 350.0)], [(0.2, 200.0), (0.2, 500.0)], [(0.7, 690.0), (0.2, 90.0)]]


def run_ranks(count, rank_main, *arguments):
    """Run a function in forked processes, one a rank; returns what each put into its queue."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    processes = [context.Process(target=rank_main, args=(rank, count, results, *arguments)) for rank in range(count)]
    for process in processes:
        process.start()
    answers = [results.get() for _ in processes]
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    return answers


def join_world(rank, count, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count))
    return TorchWorld()


def measure_rank(rank, count, results, folder, powercap, seconds, names_all_gpus):
    world = join_world(rank, count, folder)
    indices = None if not names_all_gpus else list(range(names_all_gpus))
    monitor = ZeusMonitor(gpu_indices=indices, cpus=discover_cpus(powercap))
    world.gather(None)
    begin = time.monotonic()
    monitor.begin_window("job")
    time.sleep(seconds)
    measurement = monitor.end_window("job")
    end = time.monotonic()
    job = measure_job(measurement, world)
    results.put((rank, begin, end, monitor.gpu_indices, monitor.cpu_indices, job))
    world.gather(None)
    torch.distributed.destroy_process_group()


def check_totals(driver, answers, gpus):
    jobs = [job for *_, job in answers]
    assert all(job == jobs[0] for job in jobs), "all ranks know the same"
    assert {device.uuid for device in jobs[0].devices if device.kind == "gpu"} == {device.uuid for device in gpus}
    begin, end = min(answer[1] for answer in answers), max(answer[2] for answer in answers)
    truth = sum(device.true_energy_joules(begin, end) for device in gpus)
    error_joules = abs(jobs[0].total_energy - truth)
    assert error_joules <= (0.01 * truth if end - begin >= 10 else jobs[0].total_uncertainty_joules)


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("rank_count", "gpu_count", "seconds"),
    [
        (4, 2, 3.0),
        pytest.param(4, 4, 10.0, marks=pytest.mark.long),
    ],
)
def test_each_device_is_counted_once(make_driver, tmp_path, rank_count, gpu_count, seconds):
    driver = make_driver(*[DeviceSpec() for _ in range(gpu_count)])
    for device, load in zip(driver, LOADS, strict=False):
        device.set_load(load, repeat=True)
    answers = run_ranks(rank_count, measure_rank, tmp_path, tmp_path, seconds, 0)
    check_totals(driver, answers, list(driver)[: min(rank_count, gpu_count)])
    for rank, _, _, gpu_indices, _, _ in answers:
        assert gpu_indices == [rank % gpu_count]


@pytest.mark.real_time
def test_devices_that_every_rank_measures_are_counted_once_too(make_driver, tmp_path):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    for device in driver:
        device.set_load(400.0)
    time.sleep(0.2)
    answers = run_ranks(2, measure_rank, tmp_path, tmp_path, 1.0, 2)
    job = answers[0][-1]
    assert job.total_energy == pytest.approx(2 * 400 * job.time, rel=0.02)


def test_cpu_packages_are_measured_by_the_first_rank_of_the_node(make_driver, tmp_path):
    make_driver(DeviceSpec(), DeviceSpec())
    rapl = FakeRapl(tmp_path / "machine")
    package = rapl.add_package(0)
    rapl.add_zone("dram", within=package)
    answers = run_ranks(2, measure_rank, tmp_path, rapl.root, 0.2, 0)
    assert sorted((rank, cpu_indices) for rank, _, _, _, cpu_indices, _ in answers) == [(0, [0]), (1, [])]
    job = answers[0][-1]
    assert list(job.cpu_energy) == list(job.dram_energy) == [0]


def test_one_process_is_a_job_too(monitor, gpu, work):
    with monitor.window("w") as window:
        gpu.execute(work)
    assert measure_job(window.measurement, SoloWorld()) == window.measurement


def test_without_a_process_group_a_torch_world_says_what_to_do():
    with pytest.raises(UsageError, match="init_process_group"):
        TorchWorld()
