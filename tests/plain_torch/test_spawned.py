"""A loop by hand in processes that `torch.multiprocessing.spawn` starts, each of which sees all GPUs."""

import time

import pytest
import torch

from tests.nvml_driver import DeviceSpec
from tests.support.ranks import joules_of_rows, spawn_ranks
from zeus_core.codec import decode, encode
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import torch_world
from zeus_core.training import TrainingEnergy
from zeus_core.training.account import Account

LIMIT_WATTS = 700.0
LOADS = [[(0.3, 500.0), (0.1, 300.0)], [(1.0, 350.0)]]


def train():
    torch.distributed.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    batches = torch.utils.data.DataLoader(torch.ones(200, 4), 4, num_workers=1, multiprocessing_context="fork")
    monitor, watts = ZeusMonitor(), []
    torch.distributed.barrier()
    begin = time.monotonic()
    with TrainingEnergy(monitor, world=torch_world()) as energy:
        for step, batch in enumerate(batches):
            with monitor.window("step") as window, energy.step(samples=len(batch)):
                model(batch).sum().backward()
                time.sleep(0.01)
            watts.append(window.measurement.average_power_watts)
            if step % 10 == 9:
                watts.append(energy.log()["power_w"])
                with energy.during(Activity.EVALUATION), torch.no_grad():
                    model(batch)
    return {"account": encode(energy.summary.account), "watts": watts, "span": (begin, time.monotonic())}


@pytest.mark.long
def test_each_gpu_is_counted_once_and_no_row_is_impossible(make_driver, tmp_path, monkeypatch, capfd):
    driver = make_driver(*[DeviceSpec(highest_limit_watts=LIMIT_WATTS) for _ in LOADS])
    for device, load in zip(driver, LOADS, strict=True):
        device.set_load(load, repeat=True)
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    ranks = spawn_ranks(len(LOADS), tmp_path, train)
    accounts = [decode(Account, rank["account"]) for rank in ranks]
    assert accounts[0] == accounts[1]
    begin, end = ranks[0]["span"]
    truth = sum(device.true_energy_joules(begin, end) for device in driver)
    total = accounts[0].total
    assert joules_of_rows(accounts[0], len(LOADS), LIMIT_WATTS) == total.energy_joules
    assert total.power_watts == pytest.approx(truth / (end - begin), rel=0.25), "not that of one GPU or of three"
    for rank in ranks:
        assert 0 < max(rank["watts"]) <= 1.1 * LIMIT_WATTS * len(LOADS)
    assert capfd.readouterr().err.count("+- zeus-core") == 1


@pytest.mark.long
def test_simulated_gpus_of_two_processes_are_counted_once_too(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A100-SXM4-80GB:2")
    ranks = spawn_ranks(2, tmp_path, train)
    account = decode(Account, ranks[0]["account"])
    assert decode(Account, ranks[1]["account"]) == account
    assert joules_of_rows(account, 2, 400.0) == account.total.energy_joules
    for rank in ranks:
        assert 0 < max(rank["watts"]) <= 1.1 * 400.0 * 2
    assert capfd.readouterr().err.count("+- zeus-core") == 1
