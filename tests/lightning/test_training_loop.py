"""The loop of a Lightning trainer, by the contract of all loops."""

from contextlib import suppress

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from tests.lightning.trainers import make_trainer
from tests.support.training_loop_contract import (
    ACCUMULATION,
    BATCH,
    SAMPLES,
    Indexed,
    Network,
    Stop,
    TrainingLoopContract,
)
from zeus_core.batches.pytorch.micro_batch import choose_micro_batch
from zeus_lightning.batches import UnevenBatches
from zeus_lightning.batches.lightning_loop import LightningLoop


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = Network()
        self.seen = self.network.seen

    def training_step(self, batch, batch_idx):
        return self.network(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)

    @property
    def weights(self):
        return self.network.weights


class Uses(pl.Callback):
    """Calls something with the loop of a trainer, when it is prepared."""

    def __init__(self, use):
        self.use = use

    def setup(self, trainer, pl_module, stage):
        self.loop = LightningLoop(trainer, BATCH)

    def on_fit_start(self, trainer, pl_module):
        self.loop.find_loader()
        self.use(self.loop)

    def teardown(self, trainer, pl_module, stage):
        self.loop.undo()


class Cut(pl.Callback):
    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    def on_train_batch_end(self, trainer, pl_module, *_):
        if len(pl_module.seen) == SAMPLES + BATCH * ACCUMULATION:
            trainer.save_checkpoint(self.checkpoint)
            raise Stop


class TestLightningLoop(TrainingLoopContract):
    def with_loop(self, folder, check):
        def use(loop):
            check(loop)
            raise Stop

        self._fit(folder, [Uses(use)])

    def trained(self, folder, *, micro_batch=None, uneven=False):
        callbacks = [UnevenBatches([BATCH])] if uneven else []
        if micro_batch is not None:
            callbacks.append(Uses(lambda loop: loop.use(choose_micro_batch(loop, micro_batch))))
        return self._fit(folder, callbacks)

    def resumed(self, folder):
        first = Module()
        with suppress(Stop):
            self._fit(folder, [UnevenBatches([BATCH]), Cut(folder / "cut.ckpt")], first)
        return first, self._fit(folder, [UnevenBatches([BATCH])], checkpoint=folder / "cut.ckpt")

    def _fit(self, folder, callbacks, module=None, checkpoint=None):
        module = module or Module()
        trainer = make_trainer(folder, callbacks, max_epochs=2, accumulate_grad_batches=ACCUMULATION)
        trainer.fit(module, DataLoader(Indexed(), BATCH), ckpt_path=checkpoint)
        return module


def test_a_weighted_loss_may_keep_its_graph(tmp_path):
    class Manual(Module):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.gradients = []

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss, retain_graph=True)
            self.gradients.append(self.network.layer.weight.grad.clone())
            self.zero_grad()
            loss.backward()
            self.gradients.append(self.network.layer.weight.grad.clone())

    module = Manual()
    trainer = make_trainer(tmp_path, [Uses(lambda loop: loop.weigh(lambda: 0.5))], max_steps=-1, max_epochs=1)
    trainer.fit(module, DataLoader(Indexed(), BATCH))
    weighted, unweighted = module.gradients[:2]
    assert torch.equal(weighted, 0.5 * unweighted)
