"""The page on batches that differ by rank: its code runs, on two ranks."""

import os

import lightning.pytorch
import torch
import torch.distributed
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from tests.huggingface.trainers import examples, tiny_model
from tests.support.pages import blocks
from tests.support.ranks import run_ranks
from tests.support.uneven_training import LanguageModel, Regression, samples, sentences


def run(number, names):
    exec(compile(blocks("uneven-batches.md")[number], "<page>", "exec"), names)
    return names


def in_a_loop():
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Regression())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    names = {"model": model, "dataset": samples(70), "optimizer": optimizer, "loss_function": torch.nn.MSELoss()}
    return len(run(0, names)["batches"])


def with_accelerate(number):
    accelerator = Accelerator(cpu=True)
    model, batches = LanguageModel(), DataLoader(sentences(70), 16)
    names = {"accelerator": accelerator, "model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.01)}
    if number == 4:  # which begins after `prepare`
        names["model"], batches = accelerator.prepare(model, batches)
    names = run(number, {**names, "batches": batches})
    for batch in names["batches"]:
        accelerator.backward(names["model"](**batch)["loss"])
    return len(names["batches"])


def with_the_trainer(folder):
    settings = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "max_steps": 3}
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=16, dataloader_pin_memory=False, ddp_backend="gloo", **settings
    )
    trainer = Trainer(tiny_model(), arguments, train_dataset=examples(70))
    return run(2, {"trainer": trainer})["trainer"].state.global_step


def with_chosen_batches(folder, environment):
    os.environ.update(environment)
    os.chdir(folder)
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Regression())
    names = run(5, {"model": model, "local_rank": torch.distributed.get_rank()})
    names["uneven"].close()
    return names["uneven"].batches


def test_the_loops_train_on_three_global_batches(tmp_path):
    assert run_ranks(2, in_a_loop) == [3, 3]
    assert run_ranks(2, with_accelerate, 1) == run_ranks(2, with_accelerate, 4) == [3, 3]
    assert run_ranks(2, with_the_trainer, tmp_path) == [3, 3]


def test_the_ranks_begin_with_equal_batches(tmp_path):
    simulated = {"ZEUS_SIMULATED_GPUS": "A100-SXM4-80GB:1,V100-SXM2-32GB:1"}
    assert run_ranks(2, with_chosen_batches, tmp_path, simulated) == [(16, 16), (16, 16)]


def test_a_lightning_trainer_accepts_the_callback():
    """It trains in tests/lightning/test_uneven_batches.py."""

    def make_trainer(**arguments):
        return lightning.pytorch.Trainer(accelerator="cpu", logger=False, **arguments)

    assert run(3, {"Trainer": make_trainer})["trainer"].callbacks[0].batches == (24, 8)
