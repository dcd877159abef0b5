"""The samples of each rank: each sample once, equally many batches, in an order that can be resumed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler

from zeus_core.batches.pytorch.uneven_sampler import EpochOrder, UnevenBatchSampler, checked_batches
from zeus_core.errors import UsageError
from zeus_core.mixed.allocation.trial_windows import split_in_proportion

BATCHES = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)


def samplers_of(samples, batches, seed=0, epoch=0, drop_last=False, skipped=0):
    samplers = []
    for rank in range(len(batches)):
        order = EpochOrder(samples, seed, is_shuffled=True)
        order.set_epoch(epoch)
        samplers.append(UnevenBatchSampler(order, batches, rank, drop_last))
        samplers[-1].skipped_samples = skipped
    return samplers


def global_batches(samplers):
    """The samples of each global batch, without those that only keep a rank busy; checks all ranks on the way."""
    drawn = [list(sampler) for sampler in samplers]
    assert {len(batches) for batches in drawn} == {len(samplers[0])}
    for number, of_ranks in enumerate(zip(*drawn, strict=True)):
        sizes = {sampler.sizes(number) for sampler in samplers}
        assert len(sizes) == 1, "all ranks know the sizes of all"
        (sizes,) = sizes
        assert [len(samples) for samples in of_ranks] == [size or 1 for size in sizes], "never an empty batch"
        real = [samples for samples, size in zip(of_ranks, sizes, strict=True) if size]
        assert all(samples[0] in real[0] for samples, size in zip(of_ranks, sizes, strict=True) if not size)
        yield [sample for samples in real for sample in samples]


@given(st.integers(0, 120), BATCHES, st.integers(0, 2**40), st.integers(0, 5), st.booleans())
def test_each_sample_of_an_epoch_once(samples, batches, seed, epoch, drop_last):
    trained = list(global_batches(samplers_of(samples, batches, seed, epoch, drop_last)))
    flat = [sample for batch in trained for sample in batch]
    complete = samples - samples % sum(batches)
    assert len(flat) == len(set(flat)) == (complete if drop_last else samples)
    assert set(flat) <= set(range(samples))
    assert all(len(batch) == sum(batches) for batch in trained[:-1])
    assert flat == [
        sample
        for batch in global_batches(samplers_of(samples, [sum(batches)], seed, epoch, drop_last))
        for sample in batch
    ], "the global batches do not depend on how they are split"


@given(st.integers(0, 120), BATCHES, BATCHES, st.integers(0, 20))
def test_each_sample_once_across_a_resume_with_other_ranks(samples, before, after, trained_batches):
    first = list(global_batches(samplers_of(samples, before, epoch=3)))[:trained_batches]
    done = [sample for batch in first for sample in batch]
    rest = [s for batch in global_batches(samplers_of(samples, after, epoch=3, skipped=len(done))) for s in batch]
    assert sorted(done + rest) == list(range(samples))


@given(st.integers(1, 120), st.permutations([5, 0, 2, 3]), st.permutations([4, 4, 1, 1]), st.data())
def test_each_sample_once_across_another_split(samples, before, after, data):
    """While some loader has drawn ahead of the training."""
    samplers = samplers_of(samples, before)
    iterators = [iter(sampler) for sampler in samplers]
    drawn = data.draw(st.lists(st.integers(0, len(samplers[0])), min_size=4, max_size=4))
    batches = [[next(iterator) for _ in range(count)] for iterator, count in zip(iterators, drawn, strict=True)]
    first = max(sampler.drawn for sampler in samplers)
    for sampler, iterator, own in zip(samplers, iterators, batches, strict=True):
        sampler.use(after, first)
        own += iterator
    seen = []
    for number, of_ranks in enumerate(zip(*batches, strict=True)):
        (sizes,) = {sampler.sizes(number) for sampler in samplers}
        if number < len(samplers[0]) - 1:
            assert sizes == tuple(before if number < first else after)
        seen += [sample for samples, size in zip(of_ranks, sizes, strict=True) if size for sample in samples]
    assert sorted(seen) == list(range(samples))
    assert next(iter(samplers[0]))
    assert samplers[0].batches == tuple(after), "the next epoch begins with it"


@given(st.integers(0, 1000), BATCHES)
def test_shares_are_less_than_one_sample_off(samples, parts):
    shares = split_in_proportion(samples, parts)
    assert sum(shares) == samples
    assert all(abs(share - samples * part / sum(parts)) < 1 for share, part in zip(shares, parts, strict=True))


def test_epochs_and_seeds_have_orders_of_their_own():
    def order(**arguments):
        return [sample for batch in global_batches(samplers_of(60, [4, 2], **arguments)) for sample in batch]

    assert order() == order()
    assert len({tuple(order(seed=seed, epoch=epoch)) for seed in (0, 10) for epoch in (0, 1)}) == 4


def test_any_sampler_of_single_samples_gives_the_order():
    orders = [RandomSampler(range(50), generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    samplers = [UnevenBatchSampler(order, [5, 3], rank) for rank, order in enumerate(orders)]
    samplers[0].set_epoch(1)  # of which this one knows nothing
    seen = [sample for batch in global_batches(samplers) for sample in batch]
    assert sorted(seen) == list(range(50))


def test_a_loader_of_torch_accepts_it():
    sampler = UnevenBatchSampler(EpochOrder(10, 0, is_shuffled=False), [3, 1], 0)
    loader = DataLoader(torch.arange(10), batch_sampler=sampler)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [4, 5, 6], [8, 9]]
    assert len(loader) == 3


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], r"batches is \[\]; at least one rank must have samples, as in \[24, 8\]"),
        ([0, 0], r"batches is \[0, 0\]; at least one rank must have samples"),
        ([3, -1], r"batches\[1\] is -1; it must be a whole number, at least 0"),
        ([3, 1.5], r"batches\[1\] is 1.5; it must be a whole number"),
    ],
)
def test_batches_that_make_no_sense(batches, message):
    with pytest.raises(UsageError, match=message):
        checked_batches(batches)


def test_another_split_must_have_the_same_ranks_and_samples():
    sampler = UnevenBatchSampler(range(10), [3, 1], 0)
    with pytest.raises(UsageError, match="which is for 3 ranks; this job has 2"):
        sampler.use([2, 1, 1])
    with pytest.raises(UsageError, match="which are 5 samples; the global batch has 4 samples"):
        sampler.use([2, 3])
    next(iter(sampler))
    with pytest.raises(UsageError, match="first_batch is 0, but 1 global batches are being loaded already"):
        sampler.use([2, 2])
