"""A plain loop with the micro-batch that takes the least joules: the same gradients."""

import pytest
import torch

from tests.support.pages import blocks
from zeus_core.batches.pytorch import MicroBatches
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedBatches, SimulatedCompute
from zeus_core.testing import VirtualTime


def gpu_of(model):
    return SimulatedGpu(find_preset(model), time_source=VirtualTime())


def monitor_of(gpu):
    return ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=gpu._time_source)


def batches(count=100, samples=32):
    draw = torch.Generator().manual_seed(1)
    sizes = [samples] * (count - 1) + [samples - 5]  # the last one is shorter
    return [{"x": torch.randn(size, 3, generator=draw), "y": torch.randn(size, 4, generator=draw)} for size in sizes]


class Training:
    """Ten lines of a plain loop."""

    def __init__(self, gpu=None, norm=None, sample_gib=1.5):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), norm or torch.nn.Identity(), torch.nn.Tanh())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses, self.sizes = [], set()
        if gpu is not None:
            filling = SimulatedBatches(32, half_samples=6.0, model_gib=16.0, sample_gib=sample_gib)
            SimulatedCompute(self.model, gpu, Work(0.2, 350.0), batches=filling)

    def loss_of(self, batch):
        self.sizes.add(len(batch["x"]))
        return torch.nn.functional.mse_loss(self.model(batch["x"]), batch["y"])

    def run(self, backward, data):
        for batch in data:
            self.losses.append(backward(batch).item())
            self.optimizer.step()
            self.optimizer.zero_grad()

    def plainly(self, batch):
        loss = self.loss_of(batch)
        loss.backward()
        return loss


def weights_of(training):
    return torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])


@pytest.mark.parametrize(("model", "size"), [("A100-SXM4-80GB", None), ("V100-PCIE-32GB", 8)])
def test_the_best_micro_batch_that_fits_trains_the_same(model, size):
    before = Training()
    before.run(before.plainly, batches())
    after = Training(gpu := gpu_of(model))
    micro_batches = MicroBatches(after.model, after.loss_of, monitor=monitor_of(gpu))
    after.run(micro_batches.backward, batches())
    assert micro_batches.size == size
    assert micro_batches.micro_batch.probes <= 6
    assert after.losses == pytest.approx(before.losses, rel=1e-5)
    assert torch.allclose(weights_of(after), weights_of(before), atol=1e-5)


def test_the_whole_batch_is_bit_identical_after_the_probes():
    before, after = Training(norm=torch.nn.Dropout(0.3)), Training(gpu := gpu_of("A100"), torch.nn.Dropout(0.3))
    before.run(before.plainly, batches(6))
    torch.manual_seed(0)  # the simulation draws nothing, but the model has drawn its weights
    after = Training(gpu, torch.nn.Dropout(0.3))
    after.run(MicroBatches(after.model, after.loss_of, monitor=monitor_of(gpu)).backward, batches(6))
    assert after.losses == before.losses
    assert torch.equal(weights_of(after), weights_of(before))


def test_a_step_out_of_memory_runs_again_with_less(caplog):
    """The profile, or a number, may promise more than fits; longer samples may come later."""
    before = Training()
    before.run(before.plainly, batches(8))
    after = Training(gpu_of("V100-PCIE-32GB"))  # 10 samples fit
    micro_batches = MicroBatches(after.model, after.loss_of, micro_batch=32)
    after.run(micro_batches.backward, batches(8))
    assert micro_batches.size == 8
    assert "a micro-batch of 32 samples is out of memory: training goes on with 16" in caplog.text
    assert after.losses == pytest.approx(before.losses, rel=1e-5)


def test_batch_norm_is_refused_by_name(caplog):
    training = Training(gpu := gpu_of("V100-PCIE-32GB"), torch.nn.BatchNorm1d(4), sample_gib=0.0)
    micro_batches = MicroBatches(training.model, training.loss_of, monitor=monitor_of(gpu))
    training.run(micro_batches.backward, batches(2))
    assert training.sizes == {32, 27}
    assert "BatchNorm1d at 1 normalizes over the micro-batch" in caplog.text


def test_a_contrastive_loss_is_refused(caplog):
    training = Training(gpu := gpu_of("A100"))

    def loss_of(batch):
        hidden = training.model(batch["x"])
        return torch.nn.functional.cross_entropy(hidden @ batch["y"].T, torch.arange(len(hidden)))

    micro_batches = MicroBatches(training.model, loss_of, monitor=monitor_of(gpu))
    training.run(micro_batches.backward, batches(2))
    assert micro_batches.size is None
    assert "the loss of a step depends on it" in caplog.text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, f: MicroBatches(m, f, "all"), "micro_batch is 'all'; it must be \"auto\""),
        (lambda m, f: MicroBatches(m, f, monitor=3), "monitor is 3"),
        (lambda m, f: MicroBatches(m, f).backward({"text": ["a", "b"]}), "the batch has no tensor with samples"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    training = Training()
    with pytest.raises(UsageError, match=message):
        call(training.model, training.loss_of)


def test_the_code_of_the_page_runs(capsys):
    training = Training(gpu := gpu_of("A100"))
    (block,) = blocks("micro-batch.md")
    block = block.replace("loss_of)  #", "loss_of, monitor=monitor)  #")
    names = {"model": training.model, "loss_of": training.loss_of, "optimizer": training.optimizer}
    exec(block, {**names, "batches": batches(3), "monitor": monitor_of(gpu)})
    assert "32 x 1 as it was, the best of" in capsys.readouterr().out
