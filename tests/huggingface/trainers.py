"""Tiny Trainers for the tests, on a simulated GPU."""

import pytest
import torch
import transformers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from zeus_core.device import Work

FORWARD = Work(0.3, 484.9, 0.938, 0.744)
BACKWARD = Work(0.6, 484.9, 0.938, 0.744)


def transformers_is_older_than(version):
    return tuple(map(int, transformers.__version__.split(".")[:2])) < tuple(map(int, version.split(".")))


needs_averages = pytest.mark.skipif(
    transformers_is_older_than("4.48"),
    reason="transformers 4.47 adds up the gradients of accumulated passes in place of averaging, with and without us",
)


def tiny_model(vocabulary=32, positions=8, **options):
    set_seed(0)
    sizes = {"vocab_size": vocabulary, "n_positions": positions, "n_embd": 8, "n_layer": 1, "n_head": 1}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **options)
    return GPT2LMHeadModel(config)


def examples(count):
    tokens = torch.arange(count * 8).reshape(count, 8) % 32
    return [{"input_ids": row, "labels": row} for row in tokens]


def reports_to_tensorboard(folder, monkeypatch):
    """The arguments that make a Trainer write its event files into a folder."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder))
    has_argument = "logging_dir" in TrainingArguments.__dataclass_fields__  # before transformers 5
    return {"report_to": "tensorboard", **({"logging_dir": str(folder)} if has_argument else {})}


def make_trainer(folder, callbacks, kind=Trainer, **arguments):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "logging_steps": 50,
        **arguments,
    }
    return kind(
        model=tiny_model(),
        args=TrainingArguments(**settings),
        train_dataset=examples(60),
        eval_dataset=examples(4),
        callbacks=callbacks,
    )


class RaiseAt(TrainerCallback):
    def __init__(self, step, error):
        self.step, self.error = step, error

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise self.error


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def tensorboard_tags(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
