"""A loop written with accelerate, with the micro-batch that takes the least joules: the same losses and steps."""

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedBatches, SimulatedCompute
from zeus_core.testing import VirtualTime
from zeus_huggingface.accelerate import ZeusAccelerate


def gpu_of(model):
    return SimulatedGpu(find_preset(model), time_source=VirtualTime())


def monitor_of(gpu):
    return ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=gpu._time_source)


class Model(torch.nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(3, 4), norm or torch.nn.Identity()

    def forward(self, inputs):
        return self.norm(self.layer(inputs)).tanh()


class Loop:
    """Trains for some steps, as anybody's loop does."""

    def __init__(self, samples=90, batch_size=4, accumulation=8, norm=None, gpu=None, loader=None):
        torch.manual_seed(0)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
        model = Model(norm)
        if gpu is not None:
            batches = SimulatedBatches(32, half_samples=6.0, model_gib=16.0, sample_gib=1.5)
            SimulatedCompute(model, gpu, Work(0.2, 350.0), batches=batches)
        data = loader or DataLoader(TensorDataset(torch.randn(samples, 3), torch.randn(samples, 4)), batch_size, True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        prepared = self.accelerator.prepare(model, optimizer, data, schedule)
        self.model, self.optimizer, self.batches, self.schedule = prepared
        self.losses, self.sizes, self.rates = [], set(), []

    def loss_of(self, batch):
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def train(self, steps):
        """Keep the loss of each step, weighted by its samples."""
        total, samples = 0.0, 0
        while len(self.losses) < steps:
            for batch in self.batches:
                with self.accelerator.accumulate(self.model):
                    loss = self.loss_of(batch)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.schedule.step()
                    self.optimizer.zero_grad()
                total, samples = total + loss.item() * len(batch[0]), samples + len(batch[0])
                self.sizes.add(len(batch[0]))
                if self.accelerator.sync_gradients:
                    self.losses.append(total / samples)
                    self.rates.append(self.schedule.get_last_lr())
                    total, samples = 0.0, 0
                if len(self.losses) == steps:
                    return


def weights_of(loop):
    return torch.cat([parameter.detach().flatten() for parameter in loop.model.parameters()])


def trained(steps=100, **arguments):
    loop = Loop(**arguments)
    loop.train(steps)
    return loop


@pytest.mark.parametrize(
    ("model", "size", "samples", "steps"),
    [
        ("A100-SXM4-80GB", 32, 90, 40),
        ("V100-PCIE-32GB", 8, 31, 20),
        pytest.param("A100-SXM4-80GB", 32, 36, 100, marks=pytest.mark.long),
        pytest.param("V100-PCIE-32GB", 8, 90, 100, marks=pytest.mark.long),
    ],
)
def test_the_best_micro_batch_that_fits_trains_the_same(model, size, samples, steps):
    before = trained(steps, samples=samples)
    gpu = gpu_of(model)
    loop = Loop(samples=samples, gpu=gpu)
    with ZeusAccelerate(loop.accelerator, monitor_of(gpu), micro_batch="auto", compute_loss=loop.loss_of) as energy:
        assert energy.micro_batch.chosen == size
        assert energy.micro_batch.probes <= 6
        loop.train(steps)
        assert energy.steps == steps
    assert max(loop.sizes) == min(size, samples // 4 * 4)
    assert loop.losses == pytest.approx(before.losses, rel=1e-5)
    assert loop.rates == before.rates
    assert torch.allclose(weights_of(loop), weights_of(before), atol=1e-5)
    assert loop.accelerator.gradient_accumulation_steps == 8
    assert {len(batch[0]) for batch in loop.batches} <= {4, samples % 4}


def test_samples_are_counted_in_incomplete_steps_too(monitor):
    loop = Loop(samples=37)
    with ZeusAccelerate(loop.accelerator, monitor, micro_batch=16) as energy:
        counted, count = [], energy.count
        energy.count = lambda samples=0, tokens=0: (counted.append(samples), count(samples, tokens))
        loop.train(4)
    assert sum(counted) == 2 * 37


def test_the_users_own_is_bit_identical():
    before = trained(6, batch_size=32, accumulation=2)
    gpu = gpu_of("A100")  # 64 samples do not fit
    loop = Loop(batch_size=32, accumulation=2, gpu=gpu)
    with ZeusAccelerate(loop.accelerator, monitor_of(gpu), micro_batch="auto", compute_loss=loop.loss_of) as energy:
        assert energy.micro_batch.chosen == 32
        loop.train(6)
    assert loop.losses == before.losses
    assert torch.equal(weights_of(loop), weights_of(before))


@pytest.mark.parametrize(
    ("arguments", "setting", "reason"),
    [
        ({"accumulation": 1}, "auto", "gradient_accumulation_steps is 1"),
        ({"norm": torch.nn.BatchNorm1d(4)}, "auto", "BatchNorm1d at norm normalizes over the micro-batch"),
        ({}, 5, "5 does not divide the 32 samples of a step on one rank; try 1, 2, 4"),
        ({"loader": DataLoader([torch.ones(3)] * 8, batch_size=None)}, "auto", "makes the batches"),
    ],
)
def test_what_cannot_be_changed_stays_with_the_reason(monitor, caplog, arguments, setting, reason):
    loop = Loop(**arguments)
    with ZeusAccelerate(loop.accelerator, monitor, micro_batch=setting, compute_loss=loop.loss_of):
        pass
    assert reason in caplog.text


def test_without_a_loss_nothing_is_chosen(monitor, caplog):
    loop = Loop()
    with ZeusAccelerate(loop.accelerator, monitor, micro_batch="auto"):
        loop.train(3)
    assert "pass compute_loss, a function of a batch" in caplog.text
    assert max(loop.sizes) == 4


def test_a_loop_that_runs_out_of_memory_takes_less_the_next_time():
    loop = Loop(gpu=(gpu := gpu_of("A100")))
    energy = ZeusAccelerate(loop.accelerator, monitor_of(gpu), micro_batch="auto", compute_loss=loop.loss_of)
    with pytest.raises(torch.cuda.OutOfMemoryError), energy:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")
    chooses = energy.micro_batch
    again = Loop(gpu=gpu)
    with ZeusAccelerate(again.accelerator, monitor_of(gpu), micro_batch=chooses, compute_loss=again.loss_of):
        assert chooses.chosen == 16


def test_wrong_arguments_are_named(monitor):
    loop = Loop()
    with pytest.raises(UsageError, match='micro_batch is 0; it must be "auto"'):
        ZeusAccelerate(loop.accelerator, monitor, micro_batch=0)
    with pytest.raises(UsageError, match="compute_loss is 3; it must be a function"):
        ZeusAccelerate(loop.accelerator, monitor, micro_batch="auto", compute_loss=3)
