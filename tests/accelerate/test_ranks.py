"""Two processes of a job, as torchrun starts them, that train on the devices of an NVML driver of our own."""

import json
import os
import shutil
import time

import pytest

from tests.accelerate.loop import Loop
from tests.accelerate.processes import run_processes
from tests.nvml_driver import DeviceSpec
from tests.nvml_driver.driver import _set_library
from tests.nvml_driver.library import open_library
from tests.support.hooks import be_patient
from tests.support.ranks import torchrun_environments
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import Energy
from zeus_core.search import GridSearch
from zeus_huggingface.accelerate import PowerLimitOptimizer, ZeusAccelerate

RANKS = 2


def run_ranks(driver, rank_main, *arguments):
    """Return the results of the function by rank."""
    paths = (str(driver.library_path), str(driver.state_path))
    return run_processes(
        [(start_rank, environment, paths, rank_main, *arguments) for environment in torchrun_environments(RANKS)]
    )


def start_rank(results, environment, driver_paths, rank_main, *arguments):
    os.environ.update(environment)
    library_path, state_path = driver_paths
    library = open_library(library_path)
    library.zeus_test_nvml_use(os.fsencode(state_path))
    _set_library(library)
    results.put(rank_main(int(environment["RANK"]), *arguments))


def logged(folder):
    return [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]


def train(rank, folder, main_alone, gpu_indices):
    """Log after every 20th step and evaluate after the 30th, on all processes or on the main one alone."""
    loop = Loop(folder, None)
    takes_part = rank == 0 or not main_alone
    evaluation_seconds = 0.0
    with ZeusAccelerate(loop.accelerator, ZeusMonitor(gpu_indices=gpu_indices), exchange_steps=5) as energy:
        begin = time.monotonic()
        for step in loop.train(60):
            time.sleep(0.05)
            if step % 20 == 0 and takes_part:
                loop.accelerator.log({"loss": loop.losses[-1]}, step=step)
            if step == 30 and takes_part:
                with energy.evaluation():
                    evaluation_begin = time.monotonic()
                    time.sleep(0.5)
                    evaluation_seconds = time.monotonic() - evaluation_begin
        end = time.monotonic()
    summary = energy.summary.values()
    return {"begin": begin, "end": end, "summary": summary, "evaluation_seconds": evaluation_seconds}


def check_total(driver, answers):
    begin, end = answers[0]["begin"], answers[0]["end"]
    truth = sum(device.true_energy_joules(begin, end) for device in driver)
    first, second = ({**answer["summary"], "train_energy_overhead_s": 0} for answer in answers)
    assert first == second, "all ranks know the same"
    assert abs(first["train_energy_j"] - truth) <= first["train_energy_uncertainty_j"] + 0.02 * truth


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("device_count", "main_alone"),
    [(2, False), pytest.param(1, True, marks=pytest.mark.long)],
)
def test_each_device_is_counted_once_on_each_rank_that_logs(make_driver, tmp_path, device_count, main_alone):
    driver = make_driver(*[DeviceSpec() for _ in range(device_count)])
    for device, watts in zip(driver, (450.0, 350.0), strict=False):
        device.set_load(watts)
    time.sleep(0.2)
    answers = run_ranks(driver, train, tmp_path, main_alone, None)
    check_total(driver, answers)
    *intervals, last = logged(tmp_path)
    assert [line["step"] for line in intervals] == [20, 40, 60]
    assert sum(line["energy_j"] for line in intervals) == pytest.approx(last["train_energy_steps_j"], rel=0.1)
    watts = 800.0 if device_count == 2 else 450.0
    for line in intervals:
        if not (main_alone and line["step"] > 20):  # the other process waited meanwhile, in its step
            assert line["power_w"] == pytest.approx(watts, rel=0.25)
        assert line["energy_per_sample_j"] == pytest.approx(line["energy_j"] / 160, rel=1e-6)
    assert [("eval_energy_j" in line) for line in intervals] == [False, True, False]
    logged_joules = sum(line.get("eval_energy_j", 0.0) for line in [*intervals, last])  # late ones in the last
    assert logged_joules == pytest.approx(last["train_energy_evaluation_j"], rel=0.01)
    evaluation_joules = answers[0]["evaluation_seconds"] * (450.0 if main_alone else watts)
    assert intervals[1]["eval_energy_j"] == pytest.approx(evaluation_joules, rel=0.5)


@pytest.mark.real_time
@pytest.mark.long
def test_gpus_that_all_ranks_measure_are_counted_once(make_driver, tmp_path):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    for device in driver:
        device.set_load(400.0)
    time.sleep(0.2)
    check_total(driver, run_ranks(driver, train, tmp_path, False, [0, 1]))


def end_on_the_main_process_alone(rank, folder):
    loop = Loop(folder, None)
    energy = ZeusAccelerate(loop.accelerator, exchange_steps=5)
    loop.train_and_log(20, every=10)
    begin = time.monotonic()
    if rank == 0:
        loop.accelerator.end_training()
    else:
        energy.close()
    return {"seconds": time.monotonic() - begin, "losses": loop.losses}


def test_an_end_on_the_main_process_alone_costs_the_final_numbers(make_driver, tmp_path):
    driver = make_driver(DeviceSpec())
    answers = run_ranks(driver, end_on_the_main_process_alone, tmp_path)
    assert answers[0]["seconds"] < 60
    assert [line["step"] for line in logged(tmp_path)] == [10, 20]


def save_and_go_back(rank, folder):
    loop = Loop(folder, None)
    with ZeusAccelerate(loop.accelerator) as energy:
        begin = time.monotonic()
        for step in loop.train(40):
            time.sleep(0.05)
            if step == 20:
                loop.accelerator.save_state(folder / "checkpoint")
                saved = time.monotonic()
            if step == 30:
                checkpoint = folder / "checkpoint"
                if rank == 1:  # on a disk of another machine, say, to which the main process has not written
                    checkpoint = shutil.copytree(
                        checkpoint, folder / "copy", ignore=shutil.ignore_patterns("zeus_energy.json")
                    )
                redone_seconds = time.monotonic() - saved
                loop.accelerator.load_state(checkpoint)
        end = time.monotonic()
    values = {"begin": begin, "end": end, "redone_seconds": redone_seconds}
    return {**values, "summary": energy.summary.values(), "steps": energy.steps}


@pytest.mark.real_time
def test_going_back_to_a_checkpoint_is_doing_again_on_all_ranks(make_driver, tmp_path):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    for device in driver:
        device.set_load(400.0)
    answers = run_ranks(driver, save_and_go_back, tmp_path)
    check_total(driver, answers)
    assert [answer["steps"] for answer in answers] == [30, 30]
    assert answers[0]["summary"]["train_energy_redone_j"] == pytest.approx(
        800.0 * answers[0]["redone_seconds"], rel=0.4
    )


def search(rank, folder):
    be_patient()
    loop = Loop(folder, None)
    optimizer = PowerLimitOptimizer(
        loop.accelerator, ZeusMonitor(), Energy(), warmup_steps=1, profile_steps=5, pl_step=100, search=GridSearch
    )
    with ZeusAccelerate(loop.accelerator, optimizer=optimizer) as energy:
        for step in loop.train(90):
            time.sleep(0.03)
            if step % 20 == 0 and rank == 0:
                loop.accelerator.log({}, step=step)
                with energy.evaluation():
                    time.sleep(0.01)
    return [(trial.setting, trial.joules_per_step) for trial in optimizer.optimizer.trials]


def test_all_ranks_find_one_limit_together(make_driver, tmp_path):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    for device in driver:
        device.set_load(650.0)
    first, second = run_ranks(driver, search, tmp_path)
    assert first == second
    assert len(first) == 6
    assert {device.power_limit_watts for device in driver} == {700.0}
