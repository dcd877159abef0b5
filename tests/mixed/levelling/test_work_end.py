"""When the own work of a step is over, and the page of the documentation about levelling, on real ranks."""

import time

import pytest
import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

from tests.support.pages import blocks
from tests.support.ranks import run_ranks
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE
from zeus_core.errors import UsageError
from zeus_core.mixed.levelling import LevellingOptimizer, report_work_end
from zeus_core.monitor import ZeusMonitor


class Noted(LevellingOptimizer):
    """Notes what happens in a step."""

    def __init__(self):
        super().__init__(ZeusMonitor(gpus=[SimulatedGpu(find_preset("A100"))]))
        self.happened = []

    def on_work_end(self):
        self.happened.append("work end")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(4, 4)
        self.unused = torch.nn.Linear(4, 4)
        self.frozen = torch.nn.Linear(4, 4).requires_grad_(False)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, batch):
        return self.head(self.frozen(self.used(batch))).mean()


@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_last_gradient_of_a_step_is_the_end_of_its_work(accumulated):
    levelling, model = Noted(), Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    reports = report_work_end(model, optimizer, levelling)
    for _ in range(3):
        for _ in range(accumulated):
            model(torch.rand(2, 4)).backward()
            levelling.happened.append("backward")
        optimizer.step()
        optimizer.zero_grad()
    first = ["backward"] * accumulated
    later = ["backward"] * (accumulated - 1) + ["work end", "backward"]
    assert levelling.happened == first + 2 * later, "how many gradients a step has is learned from the first one"
    reports.remove()
    model(torch.rand(2, 4)).backward()
    assert levelling.happened == first + 2 * later


def test_what_a_framework_has_prepared_is_reported_until_training_ends():
    levelling, model = Noted(), Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    levelling.on_train_begin()
    levelling.on_prepared([model], [optimizer], torch.device("cpu"))
    levelling.on_prepared([model], [optimizer], torch.device("cpu"))  # in place of the hooks there are
    for _ in range(3):
        model(torch.rand(2, 4)).backward()
        optimizer.step()
    assert levelling.happened == 2 * ["work end"]
    levelling.on_train_end()
    model(torch.rand(2, 4)).backward()
    assert levelling.happened == 2 * ["work end"]


def test_prepared_models_whose_waits_are_not_seen_turn_levelling_off():
    levelling, model = Noted(), Model()
    model.head.weight.ds_id = 3
    levelling.on_prepared([model], [torch.optim.SGD(model.parameters(), 0.1)], "cpu")
    assert levelling.result()["levelling"].startswith("off: the ranks of DeepSpeed wait for each other")


SLOW_SECONDS = 0.3  # far more than a step takes where the machine is busy


class SlowLayer(torch.nn.Linear):
    def forward(self, batch):
        time.sleep(SLOW_SECONDS * torch.distributed.get_rank())
        return super().forward(batch)


def sharded_rank(shards_root):
    """The own work of each step, in seconds, on a rank whose layers are slow, or on one that waits for it."""
    torch.distributed.init_process_group("gloo")
    model = torch.nn.Sequential(SlowLayer(4, 4), SlowLayer(4, 4), SlowLayer(4, 4))
    for layer in model:
        torch.distributed.fsdp.fully_shard(layer)
    if shards_root:
        torch.distributed.fsdp.fully_shard(model)
    levelling = LevellingOptimizer(ZeusMonitor(gpus=[SimulatedGpu(find_preset("A100"))]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    reports = report_work_end(model, optimizer, levelling)
    own = []
    for _ in range(3):
        levelling.on_step_begin()
        model(torch.rand(2, 4)).sum().backward()
        own.append(levelling._work.seconds)
        optimizer.step()
        optimizer.zero_grad()
    reports.remove()
    return own


@pytest.mark.long
@pytest.mark.parametrize("shards_root", [True, False])
def test_waits_for_sharded_parameters_are_no_work(shards_root):
    if not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("this torch has no FSDP2")
    waiting, working = run_ranks(2, sharded_rank, shards_root)
    assert min(working) >= 3 * SLOW_SECONDS
    assert min(waiting) < SLOW_SECONDS


def test_models_whose_waits_are_not_seen_are_refused_by_name():
    levelling = LevellingOptimizer(ZeusMonitor(gpus=[SimulatedGpu(find_preset("A100"))]))
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.head.weight.ds_id = 3
    with pytest.raises(UsageError, match=r"DeepSpeed.*on_work_end"):
        report_work_end(model, optimizer, levelling)


def tensor_parallel_rank():
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    tensor = torch.distributed.tensor
    tensor.parallel.parallelize_module(model, mesh, {"0": tensor.parallel.ColwiseParallel()})
    levelling = LevellingOptimizer(ZeusMonitor(gpus=[SimulatedGpu(find_preset("A100"))]))
    try:
        report_work_end(model, torch.optim.SGD(model.parameters(), 0.1), levelling)
    except UsageError as error:
        return str(error)


@pytest.mark.long
def test_a_tensor_parallel_model_is_refused_by_name():
    assert all("tensor-parallel" in message for message in run_ranks(2, tensor_parallel_rank))


def train_as_on_the_page():
    torch.manual_seed(0)
    names = {"model": Model(), "batches": [torch.rand(2, 4) for _ in range(12)]}
    own = []
    on_work_end = LevellingOptimizer.on_work_end
    # In the process of a rank, which ends with it.
    LevellingOptimizer.on_work_end = lambda levelling: (own.append(1), on_work_end(levelling))
    first, *others = blocks("levelling.md")
    exec(first, names, names)
    for other in others:
        exec(other, names, names)
    assert names["both"].result() == names["budgeted"].result() == {}
    return len(own), names["levelling"].result().get("levelling", "")


def test_the_page_runs_on_two_ranks(monkeypatch):
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "A100-SXM4-80GB:2")
    monkeypatch.setattr(Model, "forward", lambda self, batch: self.head(self.unused(self.used(batch))).mean())
    answers = run_ranks(2, train_as_on_the_page)
    assert [reports for reports, _ in answers] == [11, 11], "of twelve steps, all but the first"
    assert answers[0][1].startswith("SM clocks of ")
    assert answers[0][1] == answers[1][1]
