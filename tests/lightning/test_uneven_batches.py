"""Ranks with batches of different sizes, in Lightning, compute what one process does with the whole batch."""

import itertools

import lightning.pytorch
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.lightning.trainers import make_trainer
from tests.support.ranks import run_ranks
from tests.support.uneven_training import (
    LanguageModel,
    Regression,
    difference,
    flat,
    loss_of,
    optimizer,
    samples,
    sentences,
    tokens_in,
)
from zeus_core.errors import UsageError
from zeus_lightning.batches import UnevenBatches

ROUNDING = 1e-9


class Module(lightning.pytorch.LightningModule):
    def __init__(self, network, kind, is_manual=False):
        super().__init__()
        self.network, self.kind = network, kind
        self.automatic_optimization = not is_manual
        self.seen = []
        self.validated = 0

    def training_step(self, batch, batch_idx):
        if isinstance(batch, list) and len(batch) == 3:
            self.seen.append(batch.pop().tolist())
        # The gradient of a root needs the root, so that nothing may change it in place.
        loss = loss_of(self.network, batch)
        loss = loss + 0.0 * (loss + 1.0).sqrt()
        if self.automatic_optimization:
            return loss
        updates = self.optimizers()
        updates.zero_grad()
        self.manual_backward(loss)
        updates.step()
        return None

    def validation_step(self, batch, batch_idx):
        self.validated += 1

    def configure_optimizers(self):
        return optimizer(self.kind, self.network.parameters())


def fit(
    folder, network, dataset, batches, kind, is_manual=False, checkpoint=None, callbacks=(), workers=0, **arguments
):
    """In one process, this is a training as anybody's, but for the order of the samples."""
    lightning.pytorch.seed_everything(6, verbose=False)
    loader = DataLoader(dataset, sum(batches) // len(batches), shuffle=True, num_workers=workers)
    original = loader.batch_sampler
    uneven = UnevenBatches(batches, tokens=tokens_in if network is LanguageModel else None)
    module = Module(network(), kind, is_manual)
    settings = {"devices": len(batches), "strategy": "ddp" if len(batches) > 1 else "auto", **arguments}
    trainer = make_trainer(folder, [uneven, *callbacks], **settings)
    trainer.fit(module, loader, DataLoader(dataset, 5), ckpt_path=checkpoint)
    assert loader.batch_sampler is original
    assert module.validated % -(-61 // (5 * len(batches))) == 0, "other dataloaders are Lightning's"
    return flat(module.network), module.seen


@pytest.mark.parametrize(
    ("network", "make_dataset", "batches", "kind", "arguments"),
    [
        (Regression, samples, [6, 2], "AdamW", {"accumulate_grad_batches": 2}),
        pytest.param(Regression, samples, [0, 8], "SGD", {"is_manual": True}, marks=pytest.mark.long),
        pytest.param(LanguageModel, sentences, [1, 4, 0, 3], "SGD", {}, marks=pytest.mark.long),
        pytest.param(LanguageModel, sentences, [7, 1], "AdamW", {}, marks=pytest.mark.long),
    ],
)
def test_20_steps_give_the_parameters_of_one_process(tmp_path, network, make_dataset, batches, kind, arguments):
    dataset = make_dataset(61)
    ((alone, _),) = run_ranks(1, fit_alone, tmp_path, network, dataset, [8], kind, arguments)
    for parameters, _ in run_ranks(len(batches), fit_rank, tmp_path, network, dataset, batches, kind, arguments):
        assert difference(parameters, alone) < ROUNDING


def fit_rank(folder, network, dataset, batches, kind, arguments):
    return fit(folder, network, dataset, batches, kind, **arguments)


def fit_alone(*arguments):
    result = fit_rank(*arguments)
    torch.distributed.init_process_group("gloo")  # which the ranks of the tests end with
    return result


def indexed(count):
    """Samples that are told apart by their index."""
    return TensorDataset(*samples(count).tensors, torch.arange(count))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")  # we go on
@pytest.mark.filterwarnings("ignore:The dirpath has changed", "ignore:Checkpoint directory")
def test_a_run_resumed_within_an_epoch_has_the_parameters_of_one_process(tmp_path):
    """An epoch has 8 global batches; the checkpoint is the one after 3 of the second epoch."""
    dataset = indexed(61)
    ((alone, seen),) = run_ranks(1, fit_alone, tmp_path / "alone", Regression, dataset, [8], "AdamW", {})
    saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "at", every_n_train_steps=11)
    both = {"callbacks": [saving], "enable_checkpointing": True, "limit_val_batches": 0}
    first = {"max_steps": 11, **both}
    run_ranks(2, fit_rank, tmp_path, Regression, dataset, [6, 2], "AdamW", first)
    rest = {"checkpoint": tmp_path / "at.ckpt", "workers": 1, **both}
    results = run_ranks(4, fit_rank, tmp_path, Regression, dataset, [1, 3, 2, 2], "AdamW", rest)
    rows = zip(*(seen_by_rank for _, seen_by_rank in results), strict=True)
    assert [list(itertools.chain(*row)) for row in rows] == seen[11:]
    for parameters, _ in results:
        assert difference(parameters, alone) < ROUNDING


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(8, 6))


def refusals(folder):
    ordinary, own = DataLoader(samples(61), 4), DataLoader(samples(61), batch_sampler=[[1, 2], [3, 4]])
    cases = [
        ([6, 1], ordinary, "which are 7 samples; the global batch has 8 samples"),
        ([6, 1, 1], ordinary, "which is for 3 ranks; this job has 2"),
        ([6, 2], DataLoader(Stream(), 4), "a rank must be able to choose its samples"),
        ([6, 2], own, "only batches that a DataLoader makes by itself can be split by rank"),
    ]
    texts = []
    for batches, loader, expected in cases:
        trainer = make_trainer(folder, [UnevenBatches(batches)], devices=2, strategy="ddp")
        with pytest.raises(UsageError) as error:
            trainer.fit(Module(Regression(), "SGD"), loader)
        texts.append((expected, str(error.value)))
    return texts


def test_what_cannot_be_split_is_refused(tmp_path):
    for texts in run_ranks(2, refusals, tmp_path):
        for expected, text in texts:
            assert expected in text
    with pytest.raises(UsageError, match="tokens is 3; it must be a function"):
        UnevenBatches([6, 2], tokens=3)
