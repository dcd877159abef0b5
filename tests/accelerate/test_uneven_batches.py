"""Ranks with batches of different sizes, in loops written with accelerate, compute what one process does."""

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

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
from zeus_core.errors import UsageError, WorldError
from zeus_huggingface.accelerate.batches import UnevenBatches

ROUNDING = 1e-9


def prepared(network, dataset, size, kind="SGD", accumulation=1, **settings):
    """What a script prepares; the order of the samples depends on the seed and the epoch alone."""
    loader = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=4, **settings)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation, dataloader_config=loader)
    batches = DataLoader(dataset, size, shuffle=True)
    return accelerator, *accelerator.prepare(network, optimizer(kind, network.parameters()), batches)


def train(accelerator, network, updates, batches, steps=20, skip=0):
    """A loop as anybody's."""
    step = 0
    while step < steps:
        for batch in skip_first_batches(batches, skip) if skip and not step else batches:
            with accelerator.accumulate(network):
                accelerator.backward(loss_of(network, batch))
                updates.step()
                updates.zero_grad()
            step += accelerator.sync_gradients
            if step == steps:
                break


def train_rank(network, dataset, cases):
    results = []
    for batches, kind, accumulation, is_split in cases:
        made = network()
        size = sum(batches) if is_split else sum(batches) // len(batches)
        parts = prepared(made, dataset, size, kind, accumulation, split_batches=is_split)
        uneven = UnevenBatches(parts[0], batches, tokens=tokens_in if network is LanguageModel else None)
        assert uneven.batches == tuple(batches)
        train(*parts)
        uneven.close()
        results.append(flat(made))
        parts[0].free_memory()
    return results


def train_alone(network, dataset, cases):
    results = []
    for batches, kind, accumulation, _ in cases:
        made = network()
        train(*prepared(made, dataset, sum(batches), kind, accumulation))
        results.append(flat(made))
    return results


@pytest.mark.parametrize(
    ("network", "make_dataset", "cases"),
    [
        (Regression, samples, [([6, 2], "SGD", 1, False), ([1, 7], "AdamW", 1, True), ([8, 0], "AdamW", 2, False)]),
        (LanguageModel, sentences, [([3, 0, 4, 1], "AdamW", 1, False)]),
    ],
    ids=["2 ranks", "4 ranks, by tokens"],
)
def test_20_steps_give_the_parameters_of_one_process(network, make_dataset, cases):
    dataset = make_dataset(61)
    (alone,) = run_ranks(1, train_alone, network, dataset, cases)
    for result in run_ranks(len(cases[0][0]), train_rank, network, dataset, cases):
        for parameters, expected, case in zip(result, alone, cases, strict=True):
            assert difference(parameters, expected) < ROUNDING, case


def samples_of_rank(batches, skip):
    """The samples of two epochs, the first of which is resumed, and what is gathered from all ranks."""
    dataset = TensorDataset(*samples(61).tensors, torch.arange(61))
    accelerator, _, _, loader = prepared(Regression(), dataset, 4)
    UnevenBatches(accelerator, batches)
    gathered = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        for inputs, _, index in skip_first_batches(loader, skip) if epoch == 0 else loader:
            rows, total, names = accelerator.gather_for_metrics((inputs, index, torch.tensor(1.0)))
            assert names.tolist() == [1.0] * len(batches)
            assert torch.equal(rows, dataset.tensors[0][total])
            assert accelerator.gather_for_metrics(index.tolist()) == total.tolist()
            gathered.append(total.tolist())
    assert 2 * len(loader) == len(gathered) + skip
    return gathered


def test_each_sample_of_an_epoch_is_gathered_once():
    first, second = run_ranks(2, samples_of_rank, [8, 0], 3)
    assert first == second
    seen = [sample for batch in first for sample in batch]
    assert sorted(seen[: 61 - 24]) == sorted(set(seen[: 61 - 24]))
    assert sorted(seen[61 - 24 :]) == list(range(61))
    (alone,) = run_ranks(1, samples_of_rank, [4], 6)
    assert seen[: 61 - 24] == [sample for batch in alone for sample in batch][: 61 - 24], "the order is accelerate's"


def resume(batches, skip):
    network = Regression()
    parts = prepared(network, samples(61), sum(batches) // len(batches))
    if len(batches) > 1:
        UnevenBatches(parts[0], batches)
    parts[3].set_epoch(5)
    train(*parts, skip=skip)
    return flat(network)


def test_a_resumed_epoch_has_its_own_order():
    (alone,) = run_ranks(1, resume, [8], 3)
    resumed, _ = run_ranks(2, resume, [1, 7], 3)
    assert difference(alone, resumed) < ROUNDING


def test_closing_leaves_everything_as_it_was():
    iterate = DataLoaderShard.__iter__
    accelerator, _, _, loader = prepared(Regression(), samples(8), 4)
    names = set(vars(accelerator))
    sampler = loader.batch_sampler
    uneven = UnevenBatches(accelerator, [4])
    assert loader.batch_sampler is not sampler
    uneven.close()
    assert loader.batch_sampler is sampler
    assert set(vars(accelerator)) == names
    assert DataLoaderShard.__iter__ is iterate


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(8, 6))


def refusals():
    network = Regression()
    cases = [
        (prepared(network, samples(61), 4)[0], [6, 1]),
        (prepared(network, samples(61), 4)[0], [6, 1, 1]),
        (prepared(network, samples(61), 4, dispatch_batches=True)[0], [6, 2]),
        (Accelerator(cpu=True), [6, 2]),
    ]
    streaming = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    streaming.prepare(DataLoader(Stream(), 4))
    texts = []
    for accelerator, batches in [*cases, (streaming, [6, 2])]:
        with pytest.raises((UsageError, WorldError)) as error:
            UnevenBatches(accelerator, batches)
        texts.append(str(error.value))
    return texts


def test_what_cannot_be_split_is_refused():
    wanted = [
        r"batches is [6, 1], which are 7 samples; the global batch has 8 samples",
        "batches is [6, 1, 1], which is for 3 ranks; this job has 2",
        "without dispatch_batches: a rank must be able to choose its samples",
        "accelerator has no dataloader yet; call accelerator.prepare(batches, ...) first",
        "of a dataset with a length, can be split by rank",
    ]
    for texts in run_ranks(2, refusals):
        for text, expected in zip(texts, wanted, strict=True):
            assert expected in text
