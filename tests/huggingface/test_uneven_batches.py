"""Ranks with batches of different sizes, in Trainers, compute what one process does with the whole batch."""

import inspect

import pytest
import torch
from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

from tests.huggingface.trainers import losses_of, tiny_model
from tests.support.ranks import run_ranks
from tests.support.uneven_training import VOCABULARY, LanguageModel, Regression, difference, flat, sentences, tokens_in
from zeus_core.errors import UsageError, WorldError
from zeus_huggingface.batches import UnevenBatches

ROUNDING = 1e-9

needs_sums = pytest.mark.skipif(
    "kwargs" not in inspect.signature(GPT2LMHeadModel.forward).parameters,
    reason="GPT-2 of transformers 4.47 takes no number of tokens to divide the loss by",
)


class MeanLoss(Regression):
    """Returns a mean over the samples of a batch, and takes no number to divide by."""

    def forward(self, x, y):
        return {"loss": torch.nn.functional.mse_loss(super().forward(x), y)}


def rows(count):
    inputs = torch.arange(count * 6, dtype=torch.float64).mul(0.37).sin().reshape(count, 6)
    return [{"x": row, "y": row.sum(0, keepdim=True).square().sin()} for row in inputs]


def language_model():
    """Without dropout, whose random numbers depend on how a batch is split, and with masks in double precision."""
    model = tiny_model(VOCABULARY, positions=9, attn_implementation="eager").double()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


# The model, its samples, and the tokens by which its losses are to be weighted.
KINDS = {
    "summed up by the Trainer": (language_model, sentences, None),
    "means over tokens": (LanguageModel, sentences, tokens_in),
    "means over samples": (MeanLoss, rows, None),
}


def make_trainer(folder, kind, size, **arguments):
    make_model, make_samples, _ = KINDS[kind]
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": size,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "ddp_backend": "gloo",
        "max_steps": 20,
        "logging_steps": 5,
        "learning_rate": 0.01,
        "remove_unused_columns": False,
        "data_seed": 7,
        **arguments,
    }
    return Trainer(make_model(), TrainingArguments(**settings), train_dataset=make_samples(61))


def train(folder, kind, batches, arguments, resume=False):
    """In one process, this is a Trainer as anybody's."""
    trainer = make_trainer(folder, kind, sum(batches) // len(batches), **arguments)
    if len(batches) > 1:
        UnevenBatches(trainer, batches, tokens=KINDS[kind][2])
    trainer.train(resume_from_checkpoint=resume)
    return flat(trainer.model), losses_of(trainer)


@pytest.mark.parametrize(
    ("kind", "batches", "arguments"),
    [
        pytest.param("summed up by the Trainer", [5, 3], {"gradient_accumulation_steps": 2}, marks=needs_sums),
        pytest.param("summed up by the Trainer", [8, 0], {"optim": "sgd"}, marks=[pytest.mark.long, needs_sums]),
        pytest.param("summed up by the Trainer", [4, 2, 1, 1], {}, marks=[pytest.mark.long, needs_sums]),
        pytest.param("means over tokens", [1, 7], {}, marks=pytest.mark.long),
        pytest.param("means over samples", [3, 0, 4, 1], {"optim": "sgd"}, marks=pytest.mark.long),
        pytest.param("means over samples", [6, 2], {"gradient_accumulation_steps": 3}, marks=pytest.mark.long),
    ],
)
def test_20_steps_give_the_parameters_of_one_process(tmp_path, kind, batches, arguments):
    ((alone, losses),) = run_ranks(1, train, tmp_path, kind, [8], arguments)
    results = run_ranks(len(batches), train, tmp_path, kind, batches, arguments)
    for parameters, _ in results:
        assert difference(parameters, alone) < ROUNDING
    assert results[0][1] == pytest.approx(losses, abs=1e-4), "the loss that is logged is that of the whole batch"


@needs_sums
@pytest.mark.long
def test_a_run_resumed_with_other_ranks_has_the_parameters_of_one_process(tmp_path):
    kind = "summed up by the Trainer"
    ((alone, _),) = run_ranks(1, train, tmp_path / "alone", kind, [8], {})
    folder, saving = tmp_path / "ranks", {"save_strategy": "steps", "save_steps": 11}
    run_ranks(2, train, folder, kind, [6, 2], saving)
    (folder / "checkpoint-20").rename(folder / "later")
    for parameters, _ in run_ranks(4, train, folder, kind, [1, 4, 2, 1], saving, True):
        assert difference(parameters, alone) < ROUNDING


def refusals(folder):
    kind = "means over samples"
    makers = [
        lambda: UnevenBatches(make_trainer(folder, kind, 4), [6, 1, 1]),
        lambda: UnevenBatches(make_trainer(folder, kind, 4, auto_find_batch_size=True), [6, 2]),
        lambda: UnevenBatches(make_trainer(folder, kind, 4), [6, 2], tokens="all"),
    ]
    texts = []
    for make in makers:
        with pytest.raises((UsageError, WorldError)) as error:
            make()
        texts.append(str(error.value))
    trainer = make_trainer(folder, kind, 4)
    UnevenBatches(trainer, [6, 1])
    with pytest.raises(UsageError) as error:
        trainer.train()
    return [*texts, str(error.value)]


def test_what_cannot_be_split_is_refused(tmp_path):
    wanted = [
        "batches is [6, 1, 1], which is for 3 ranks; this job has 2",
        "auto_find_batch_size is true, which changes the batches of all ranks; turn it off",
        "tokens is 'all'; it must be a function",
        "which are 7 samples; the global batch has 8 samples",
    ]
    for texts in run_ranks(2, refusals, tmp_path):
        for text, expected in zip(texts, wanted, strict=True):
            assert expected in text


def close(folder):
    trainer = make_trainer(folder, "means over samples", 4)
    names = set(vars(trainer))
    UnevenBatches(trainer, [4]).close()
    return set(vars(trainer)) ^ names


def test_closing_leaves_the_trainer_as_it_was(tmp_path):
    assert run_ranks(1, close, tmp_path) == [set()]
