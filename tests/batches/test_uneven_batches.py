"""Ranks with batches of different sizes compute what one process does with the whole batch."""

import contextlib
import itertools
import json
import logging

import pytest
import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from tests.support.ranks import run_ranks
from tests.support.uneven_training import (
    SEED,
    LanguageModel,
    Regression,
    difference,
    flat,
    loss_of,
    samples,
    sentences,
    tokens_in,
    train,
    train_alone,
)
from zeus_core.batches.pytorch import UnevenBatches
from zeus_core.batches.pytorch.uneven_training import _warn_of_batch_norms
from zeus_core.errors import UsageError, WorldError

ROUNDING = 1e-9  # of parameters near 1 in double precision, after AdamW has divided by small numbers


def wrapped(network):
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    return DistributedDataParallel(network)


def train_regressions(cases):
    """Several trainings in the same processes, as starting these takes longest."""
    results = []
    for batches, kind, accumulation, drop_last in cases:
        network = wrapped(Regression())
        uneven = UnevenBatches(network, batches)
        loader = uneven.loader(samples(61), seed=SEED, drop_last=drop_last)
        train(network, loader, uneven.weighted, kind, accumulation, network.no_sync)
        results.append(flat(network))
    return results


def train_language_model(batches, kind, is_weighted=True):
    network = wrapped(LanguageModel())
    uneven = UnevenBatches(network, batches, tokens=tokens_in)
    loader = uneven.loader(sentences(61), seed=SEED)
    train(network, loader, uneven.weighted if is_weighted else lambda loss: loss, kind)
    return flat(network)


@pytest.mark.parametrize(
    "cases",
    [
        [([6, 2], "SGD", 1, False), ([1, 7], "AdamW", 1, False), ([8, 0], "AdamW", 2, True), ([3, 5], "SGD", 3, True)],
        [([5, 2, 1, 0], "SGD", 1, False), ([1, 2, 4, 1], "AdamW", 1, False)],
    ],
    ids=["2 ranks", "4 ranks"],
)
def test_20_steps_give_the_parameters_of_one_process(cases):
    """61 samples: the last global batch of an epoch is incomplete, and some ranks have none of it."""
    results = run_ranks(len(cases[0][0]), train_regressions, cases)
    assert all(other == results[0] for other in results[1:]), "all ranks have the same parameters"
    for (batches, kind, accumulation, drop_last), parameters in zip(cases, results[0], strict=True):
        alone = train_alone(Regression, samples(61), sum(batches), kind, accumulation, drop_last)
        assert difference(parameters, alone) < ROUNDING, (batches, kind)


@pytest.mark.parametrize(("batches", "kind"), [([6, 2], "AdamW"), ([3, 1, 4, 0], "SGD")])
def test_losses_that_are_means_over_tokens(batches, kind):
    for parameters in run_ranks(len(batches), train_language_model, batches, kind):
        assert difference(parameters, train_alone(LanguageModel, sentences(61), sum(batches), kind)) < ROUNDING


def test_without_the_weight_the_parameters_are_others():
    """Or the tests above could not fail."""
    unweighted, _ = run_ranks(2, train_language_model, [6, 2], "SGD", False)
    assert difference(unweighted, train_alone(LanguageModel, sentences(61), 8, "SGD")) > 1e-3


# Resuming.


def train_a_part(batches, path, begin, end):
    """Train from one step to another; returns the samples trained on."""
    network = wrapped(Regression())
    uneven = UnevenBatches(network, batches)
    dataset = torch.utils.data.TensorDataset(*samples(61).tensors, torch.arange(61))
    loader = uneven.loader(dataset, num_workers=begin % 2)  # workers load ahead
    updates = torch.optim.SGD(network.parameters(), 0.05)
    if begin:
        state = json.loads(path.read_text())
        loader.load_state_dict(state["loader"])
        torch.nn.utils.vector_to_parameters(torch.tensor(state["model"], dtype=torch.float64), network.parameters())
    seen = []
    step = begin
    while step < end:
        for batch in loader:
            loss = uneven.weighted(loss_of(network, batch))
            loss.backward()
            updates.step()
            updates.zero_grad()
            step += 1
            seen += batch[2].tolist() if loss.item() else []
            if step == end:
                break
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        path.write_text(json.dumps({"loader": loader.state_dict(), "model": flat(network)}))
    return seen, flat(network)


@pytest.mark.long
def test_each_sample_once_across_resumes_with_other_ranks(tmp_path):
    """An epoch has 8 global batches; the third and last part ends with the second epoch."""
    parts = [([6, 2], 0, 5), ([4, 3, 1], 5, 11), ([0, 8], 11, 16)]
    seen = []
    for batches, begin, end in parts:
        results = run_ranks(len(batches), train_a_part, batches, tmp_path / "state.json", begin, end)
        seen.append([sample for samples_of_rank, _ in results for sample in samples_of_rank])
    assert [len(samples_of_part) for samples_of_part in seen] == [40, 21 + 24, 61 - 24]
    assert sorted(itertools.chain(*seen)) == sorted([*range(61), *range(61)])
    ((_, alone),) = run_ranks(1, train_a_part, [8], tmp_path / "other.json", 0, 16)
    assert difference(results[0][1], alone) < ROUNDING


def test_the_state_is_that_of_the_dataset():
    loader = UnevenBatches(Regression(), [4]).loader(samples(10))
    with pytest.raises(UsageError, match=r"state\['epoch'\] is -1; it must be a whole number"):
        loader.load_state_dict({})
    with pytest.raises(UsageError, match="state is that of a dataset of 12 samples; this one has 10"):
        loader.load_state_dict({**loader.state_dict(), "of": 12})
    assert len(loader) == 3
    loader.load_state_dict({"epoch": 2, "samples": 8, "seed": 1, "of": 10})
    assert len(loader) == 1
    assert [len(batch[0]) for batch in loader] == [2]
    assert loader.state_dict() == {"epoch": 3, "samples": 0, "seed": 1, "of": 10}
    assert len(loader) == 3


# Sharded models, and those that cannot be weighted.


def train_sharded(batches, kind):
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    network = Regression()
    if kind == "fsdp2":
        torch.distributed.fsdp.fully_shard(network.layers[0])
        torch.distributed.fsdp.fully_shard(network)
    else:
        network = FullyShardedDataParallel(network, device_id=torch.device("cpu"))
    uneven = UnevenBatches(network, batches)
    train(network, uneven.loader(samples(61), seed=SEED), uneven.weighted, "AdamW")
    with FullyShardedDataParallel.summon_full_params(network) if kind == "fsdp1" else contextlib.nullcontext():
        return flat(network)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1"])
def test_sharded_models(kind):
    if kind == "fsdp2" and not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("this torch has no FSDP2")
    results = run_ranks(2, train_sharded, [7, 1], kind)
    assert difference(results[0], train_alone(Regression, samples(61), 8, "AdamW")) < ROUNDING


def refusal_of(case):
    with pytest.raises((UsageError, WorldError)) as error:
        case()
    return str(error.value)


def refusals():
    network = wrapped(Regression())
    silent = DistributedDataParallel(Regression())
    silent.register_comm_hook(None, noop_hook)
    rank = torch.distributed.get_rank()
    cases = [
        lambda: UnevenBatches(network, [3]),
        lambda: UnevenBatches(network, [3, 1] if rank == 0 else [2, 2]),
        lambda: UnevenBatches(network, [3, 1] if rank == 0 else [3, -1]),
        lambda: UnevenBatches(Regression(), [3, 1]),
        lambda: UnevenBatches(silent, [3, 1]),
        lambda: UnevenBatches(DataParallel(Regression()), [3, 1]),
        lambda: UnevenBatches(network, [3, 1], tokens=3),
    ]
    return [refusal_of(case) for case in cases]


def test_what_cannot_be_weighted_is_refused_on_all_ranks_alike():
    first, second = run_ranks(2, refusals)
    wanted = [
        "batches is [3], which is for 1 ranks; this job has 2",
        "batches is [3, 1] on rank 0 and [2, 2] on rank 1; all ranks need the same",
        "batches[1] is -1; it must be a whole number, at least 0",
        "model is a Regression, whose gradients nothing averages over the 2 ranks; wrap it first",
        "model has the communication hook noop_hook, which does not average gradients in each step",
        "model is a DataParallel, which splits batches itself",
        "tokens is 3; it must be a function that returns the tokens in a batch, or None",
    ]
    for own, others, text in zip(first, second, wanted, strict=True):
        assert text in own
        assert text in others


def test_wrong_arguments_of_the_loader():
    uneven = UnevenBatches(Regression(), [4])
    with pytest.raises(UsageError, match="batch_size is set by the batches of the ranks; leave it out"):
        uneven.loader(samples(8), batch_size=4)
    with pytest.raises(UsageError, match="seed is -1; it must be a whole number, at least 0"):
        uneven.loader(samples(8), seed=-1)
    with pytest.raises(UsageError, match="of which no rank can choose its samples; it must have a length"):
        uneven.loader(torch.utils.data.ChainDataset([]))
    with pytest.raises(UsageError, match="no batch has begun"):
        uneven.weighted(torch.zeros(1))


def test_layers_that_normalise_a_batch_are_named(caplog):
    class Network(torch.nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.layer, self.norm = torch.nn.Linear(2, 2), norm

    cases = [
        (torch.nn.GroupNorm(1, 2), [4, 1], ""),
        (torch.nn.BatchNorm1d(2), [4, 1], "norm normalise each rank's own batch"),
        (torch.nn.SyncBatchNorm(2), [4, 1], ""),
        (torch.nn.SyncBatchNorm(2), [5, 0], "norm count one sample of each rank without samples too"),
    ]
    for norm, batches, text in cases:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            _warn_of_batch_norms(Network(norm), batches)
        assert len(caplog.messages) == bool(text)
        assert text in "".join(caplog.messages)
