"""The energy of real engines in real time, on boards whose counters are files. Plans: test_example.py."""

import json

import pytest
import torch

import zeus_deepspeed
from tests.deepspeed.engines import make_engine, make_module, run_engines
from tests.deepspeed.virtual_engine import batches
from tests.support.fake_sysfs import FakeSysfs
from tests.support.sysfs_training import VENDORS, add
from zeus_core.device import discover_gpus


def train_on_tree(folder):
    """Train four ranks; the first returns the energy of all boards before, within and after the training."""
    perseus = {"enabled": True, "folder": folder, "warmup_steps": 3, "check_steps": 5, "quiet": True}
    engine = make_engine(make_module(2, 2), zeus_deepspeed.initialize, perseus=perseus)
    gpus, data, joules = discover_gpus({}), batches(), []

    def read():
        torch.distributed.barrier()
        joules.append(sum(gpu.read_energy_counter_joules() for gpu in gpus))
        torch.distributed.barrier()

    for read_after in (0, 1, 31, 32):
        while engine.global_steps < read_after:
            engine.train_batch(data)
        read()
    engine.destroy()
    read()
    return joules


@pytest.mark.real_time
@pytest.mark.long
@pytest.mark.timeout(280)
@pytest.mark.parametrize("vendor", VENDORS)
def test_boards_of_sysfs_are_measured_where_clocks_cannot_be_set(monkeypatch, tmp_path, vendor):
    tree = FakeSysfs(tmp_path)
    for _ in range(4):
        add(tree, vendor)
    monkeypatch.setenv("ZEUS_SYSFS", str(tree.root))
    with tree.run(270.0):
        before, begun, ending, _, after = run_engines(4, train_on_tree, str(tmp_path / "out"))[0]
    total = json.loads((tmp_path / "out" / "zeus-energy" / "run.json").read_text())["account"]["total"]["measured"]
    uncertainty = total["uncertainty_joules"]
    assert total["method"] == "counted"
    assert ending - begun - uncertainty <= total["energy_joules"] <= after - before + uncertainty
