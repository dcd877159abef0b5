"""Tiny modules and Trainers for the tests, on a simulated GPU."""

import functools

import lightning.pytorch
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from zeus_core.device import Work
from zeus_core.pytorch import SimulatedCompute

FORWARD = Work(0.3, 484.9, 0.938, 0.744)
BACKWARD = Work(0.6, 484.9, 0.938, 0.744)
SAVING = Work(6.0, 100.0, 0.5, 0.5)
BATCH_SIZE = 4


@functools.cache
def module_class(pl):
    class Module(pl.LightningModule):
        """Every pass takes place on a GPU too, and so does saving."""

        def __init__(self, gpu=None, saving=None):
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(4, 1)
            self.losses = []
            self.gpu, self.saving = gpu, saving
            if gpu is not None:
                SimulatedCompute(self.layer, gpu, FORWARD, BACKWARD)

        def loss(self, batch):
            loss = self.layer(batch).square().mean()
            self.losses.append(loss.item())
            return loss

        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.layer(batch)

        test_step = validation_step

        def on_save_checkpoint(self, checkpoint):
            if self.saving is not None:
                self.gpu.execute(self.saving)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    return Module


def loader(batches):
    samples = torch.arange(batches * BATCH_SIZE * 4.0).sin().reshape(-1, 4)
    return torch.utils.data.DataLoader(samples, batch_size=BATCH_SIZE)


def tokens_in(batch):
    return batch.numel()


def make_trainer(folder, callbacks, pl=lightning.pytorch, **arguments):
    settings = {
        "default_root_dir": str(folder),
        "accelerator": "cpu",
        "callbacks": callbacks,
        "max_steps": 20,
        "log_every_n_steps": 5,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **arguments,
    }
    return pl.Trainer(**settings)


def joules_of(gpu, work, limit_watts=350):
    return gpu.preset.physics.operating_point(work, limit_watts).energy_joules


def step_joules(gpu, batches=1):
    return batches * (joules_of(gpu, FORWARD) + joules_of(gpu, BACKWARD))


def tensorboard_values(folder):
    """The values of each tag, by step."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def recorder(pl=lightning.pytorch):
    """A logger that keeps what it is given."""

    class Recorder(pl.loggers.logger.DummyLogger):
        def __init__(self):
            super().__init__()
            self.logged = []

        def log_metrics(self, metrics, step=None):
            self.logged.append((step, dict(metrics)))

        def values(self, name):
            return [metrics[name] for _, metrics in self.logged if name in metrics]

    return Recorder()


def at(hook, action, pl=lightning.pytorch):
    """A callback that does something whenever a hook is called: `action(trainer)`."""

    def act(self, trainer, *_, **__):
        action(trainer)

    return type("At", (pl.Callback,), {hook: act})()


def at_step(step, action, pl=lightning.pytorch):
    """A callback that does something at the end of the batch in which a step ends."""

    def act(trainer):
        if trainer.global_step == step:
            action()

    return at("on_train_batch_end", act, pl)
