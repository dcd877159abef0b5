"""A small classifier, trained by the real Trainer on a simulated GPU, as a recurring job: here, or in a process alone.

python -m tests.support.recurring_training FOLDER STORAGE [--hang | --meet OTHER]
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.jobs import RecurringJob, Target
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedBatches, SimulatedCompute
from zeus_core.testing import VirtualTime
from zeus_huggingface import ZeusTrainerCallback

BATCH_SIZES = (8, 16, 32, 64)
DEFAULT = 64
SAMPLES = 256
FORWARD = Work(0.1, 300.0, 0.9, 0.7)


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, inputs, labels=None):
        logits = self.layer(inputs)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def examples(seed):
    numbers = np.random.default_rng(seed)
    inputs = numbers.normal(size=(SAMPLES, 8)).astype(np.float32)
    labels = (inputs @ np.linspace(-1.0, 1.0, 8) > 0).astype(np.int64)
    return [{"inputs": row, "labels": label} for row, label in zip(inputs, labels, strict=True)]


def job_in(folder, storage):
    return RecurringJob(
        "nightly",
        BATCH_SIZES,
        DEFAULT,
        Target("eval_accuracy", 0.85),
        40,
        storage=storage,
        learning_rate_rule="none",
        gpu_model="A40",
        heartbeat_seconds=5,
        pending_folder=folder / "pending",
    )


def train(folder, run, callbacks=()):
    """Train until the run ends it. Other data each time, as each night."""
    set_seed(run.number)
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A40"), time_source=time_source)
    callback = ZeusTrainerCallback(ZeusMonitor(gpus=[gpu], time_source=time_source), quiet=True, recurring_run=run)
    model = Classifier()
    SimulatedCompute(model, gpu, FORWARD, batches=SimulatedBatches(samples=64, half_samples=16))
    arguments = TrainingArguments(
        output_dir=str(folder / f"run-{run.number}"),
        per_device_train_batch_size=run.batch_size_per_rank,
        per_device_eval_batch_size=SAMPLES,
        learning_rate=run.learning_rate(0.03),
        optim="sgd",
        lr_scheduler_type="constant",
        num_train_epochs=40,
        eval_strategy="epoch",
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    Trainer(
        model=model,
        args=arguments,
        train_dataset=examples(run.number),
        eval_dataset=examples(1_000),
        compute_metrics=lambda told: {"accuracy": float((told.predictions.argmax(1) == told.label_ids).mean())},
        callbacks=[callback, *callbacks],
    ).train()


def run_once(folder, storage, callbacks=()):
    with job_in(folder, storage).run() as run:
        train(folder, run, callbacks)
    return run


class Hang(TrainerCallback):
    """Says that an evaluation was reported, and goes on no more."""

    def __init__(self, folder):
        self.folder = folder

    def on_evaluate(self, *_, **__):
        time.sleep(0.5)  # the report is written in the background
        (self.folder / "hangs").touch()
        time.sleep(600)


class Meet(TrainerCallback):
    """Goes on once the other process trains too."""

    def __init__(self, folder, own, other):
        self.own, self.other = folder / f"trains-{own}", folder / f"trains-{other}"

    def on_train_begin(self, *_, **__):
        self.own.touch()
        wait_until(self.other.exists)


def wait_until(condition, seconds=300):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("it never happened")
        time.sleep(0.05)


def main(folder, storage, mode="", own="", other=""):
    torch.set_num_threads(1)
    callbacks = {"--hang": [Hang(folder)], "--meet": [Meet(folder, own, other)]}.get(mode, [])
    run_once(folder, storage, callbacks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
