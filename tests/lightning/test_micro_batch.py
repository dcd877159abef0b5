"""A Lightning trainer with the micro-batch that takes the least joules: the same steps on the same samples."""

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.lightning.trainers import make_trainer
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedBatches, SimulatedCompute
from zeus_core.testing import VirtualTime
from zeus_lightning import ZeusCallback


def gpu_of(model):
    return SimulatedGpu(find_preset(model), time_source=VirtualTime())


def monitor_of(gpu):
    return ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=gpu._time_source)


class Module(pl.LightningModule):
    """Keeps the loss, the size of the gradient and the learning rate of each step."""

    def __init__(self, gpu=None, norm=None, asks_for_steps=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Sequential(torch.nn.Linear(3, 4), norm or torch.nn.Identity(), torch.nn.Tanh())
        self.asks_for_steps = asks_for_steps
        self.losses, self.gradients, self.rates, self.sizes = [], [], [], set()
        self.planned_steps = None
        if gpu is not None:
            batches = SimulatedBatches(32, half_samples=6.0, model_gib=16.0, sample_gib=1.5)
            SimulatedCompute(self.layer, gpu, Work(0.2, 350.0), batches=batches)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss, on_epoch=True, on_step=False, batch_size=len(inputs))
        self.sizes.add(len(inputs))
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(torch.cat([parameter.grad.flatten() for parameter in self.parameters()]).norm().item())
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_train_epoch_end(self):
        self.losses.append(self.trainer.callback_metrics["loss"].item())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        if self.asks_for_steps:
            self.planned_steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.planned_steps or 100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data(samples, batch_size=4, **arguments):
    draw = torch.Generator().manual_seed(1)
    tensors = torch.randn(samples, 3, generator=draw), torch.randn(samples, 4, generator=draw)
    return DataLoader(TensorDataset(*tensors), batch_size, shuffle=True, **arguments)


def trained(folder, module, loader, callbacks=(), **arguments):
    settings = {"max_steps": 100, "accumulate_grad_batches": 8, **arguments}
    trainer = make_trainer(folder, list(callbacks), **settings)
    torch.manual_seed(5)
    trainer.fit(module, loader)
    return trainer


def same(after, before):
    assert len(after.gradients) == len(before.gradients)
    assert after.losses == pytest.approx(before.losses, rel=1e-4)
    assert after.gradients == pytest.approx(before.gradients, rel=1e-3)
    assert after.rates == before.rates
    for first, second in zip(after.parameters(), before.parameters(), strict=True):
        assert torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "size", "asks_for_steps", "epochs"),
    [
        ("A100-SXM4-80GB", 32, False, 6),
        pytest.param("V100-PCIE-32GB", 8, True, 6, marks=pytest.mark.long),
        pytest.param("A100-SXM4-80GB", 32, True, 34, marks=pytest.mark.long),
        pytest.param("V100-PCIE-32GB", 8, False, 34, marks=pytest.mark.long),
    ],
)
def test_the_best_micro_batch_that_fits_trains_the_same(tmp_path, model, size, asks_for_steps, epochs):
    before, after = Module(asks_for_steps=asks_for_steps), Module(gpu := gpu_of(model), asks_for_steps=asks_for_steps)
    trained(tmp_path, before, data(96), max_epochs=epochs)
    callback = ZeusCallback(monitor_of(gpu), micro_batch="auto")
    loader = data(96)
    trainer = trained(tmp_path, after, loader, [callback], max_epochs=epochs)
    assert callback.micro_batch.chosen == size
    assert callback.micro_batch.probes <= 6
    assert after.planned_steps == before.planned_steps
    assert trainer.global_step == min(3 * epochs, 100)
    same(after, before)
    assert trainer.accumulate_grad_batches == 8
    assert loader.batch_sampler.batch_size == 4


@pytest.mark.parametrize(
    ("samples", "size", "drops", "own_generator"),
    [
        (93, 16, False, True),
        (92, 16, False, False),
        (100, 32, False, True),
        (33, 16, True, True),
        (34, 8, False, False),
    ],
)
def test_incomplete_steps_at_the_end_of_an_epoch_stay(tmp_path, samples, size, drops, own_generator):
    def loader():
        generator = torch.Generator().manual_seed(3) if own_generator else None
        return data(samples, drop_last=drops, generator=generator)

    before, after = Module(), Module()
    trained(tmp_path, before, loader(), max_steps=8)
    gpu = gpu_of("A100")
    trained(tmp_path, after, loader(), [ZeusCallback(monitor_of(gpu), micro_batch=size)], max_steps=8)
    same(after, before)


def test_probes_leave_no_trace(tmp_path):
    """The users's own is the best one that fits: all is bit-identical, with dropout."""
    before, after = (Module(norm=torch.nn.Dropout(0.3)) for _ in range(2))
    trained(tmp_path, before, data(96, 16), max_steps=6, accumulate_grad_batches=2)
    gpu = gpu_of("A100")
    SimulatedCompute(after.layer, gpu, Work(0.2, 350.0), batches=SimulatedBatches(32, 6.0, 0.0, 5.0))
    callback = ZeusCallback(monitor_of(gpu), micro_batch="auto")
    trained(tmp_path, after, data(96, 16), [callback], max_steps=6, accumulate_grad_batches=2)
    assert callback.micro_batch.out_of_memory == {32}
    assert after.losses == before.losses
    assert after.gradients == before.gradients


@pytest.mark.parametrize(
    ("module", "arguments", "setting", "reason"),
    [
        (lambda: Module(norm=torch.nn.BatchNorm1d(4)), {}, "auto", "BatchNorm1d at layer.1 normalizes over"),
        (Module, {"accumulate_grad_batches": 1}, "auto", "accumulate_grad_batches is 1"),
        (Module, {"val_check_interval": 4}, "auto", "val_check_interval=4 counts batches"),
        (Module, {"limit_train_batches": 9}, "auto", "limit_train_batches=9 counts batches"),
        (Module, {}, 5, "batches of 4 do not join to 5 in steps of 32 samples, or in the last; try 4, 8, 16, 32"),
        (Module, {}, 2, "batches of 4 do not join to 2 in steps of 32 samples, or in the last; try 4, 8, 16, 32"),
    ],
)
def test_what_cannot_be_changed_stays_with_the_reason(tmp_path, monitor, caplog, module, arguments, setting, reason):
    changed = module()
    callback = ZeusCallback(monitor, micro_batch=setting)
    trained(tmp_path, changed, data(96), [callback], max_steps=2, **arguments)
    assert f"the micro-batch stays as it was: {reason}" in caplog.text
    assert changed.sizes == {4}


@pytest.mark.parametrize("setting", ["auto", 8])
def test_several_processes_keep_their_micro_batch_and_say_so(tmp_path, monitor, caplog, setting):
    callback = ZeusCallback(monitor, micro_batch=setting)
    changed = Module()
    trainer = make_trainer(tmp_path, [callback], max_steps=2, accumulate_grad_batches=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(trainer), "world_size", property(lambda _: 2))
        trainer.fit(changed, data(96))
    assert "the micro-batch stays as it was: several processes, or a " in caplog.text
    assert changed.sizes == {4}


def test_an_error_out_of_memory_in_training_is_kept(tmp_path):
    module = Module(gpu := gpu_of("A100"))

    def fail(optimizer):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    module.on_before_optimizer_step = fail
    callback = ZeusCallback(monitor_of(gpu), micro_batch="auto")
    with pytest.raises(torch.cuda.OutOfMemoryError):
        trained(tmp_path, module, data(96), [callback])
    assert callback.micro_batch.out_of_memory == {32}
    again = Module(gpu)
    trained(tmp_path, again, data(96), [callback], max_steps=2)
    assert callback.micro_batch.chosen == 16
    assert max(again.sizes) == 16


def test_wrong_arguments_are_named(monitor):
    with pytest.raises(UsageError, match='micro_batch is 0; it must be "auto"'):
        ZeusCallback(monitor, micro_batch=0)
