"""Batches of another size: each sample in the same step, with the same weight."""

import itertools

import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from zeus_core.batches.pytorch.window_batches import WindowBatches


def weights_by_step(batches, accumulation, weights):
    """The weight of each sample in each step, as a loop gives it: the mean of a batch over the accumulation."""
    steps = [{}]
    places = list(enumerate(batches))
    for place, batch in places:
        steps[-1].update({index: weights(place) / accumulation / len(batch) for index in batch})
        if (place + 1) % accumulation == 0 and place + 1 < len(places):
            steps.append({})
    return steps


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("samples", [1, 3, 7, 8, 31, 32, 33, 37, 52, 64, 71])
def test_every_sample_keeps_its_step_and_its_weight(samples, drops):
    for original, size in itertools.product([1, 2, 4, 8, 16, 32], repeat=2):
        accumulation = 32 // original
        sampler = BatchSampler(SequentialSampler(range(samples)), original, drops)
        windows = WindowBatches(sampler, accumulation, size)
        assert len(list(windows)) == len(windows)
        before = weights_by_step(sampler, accumulation, lambda place: 1.0)
        whole, tail = windows.whole_batches, len(windows.tail)
        batches = list(windows)
        after = weights_by_step(batches[:whole], windows.accumulation, windows.weight_of) if whole else []
        if tail:
            last = batches[whole:]
            weights = lambda place, whole=whole, windows=windows: windows.weight_of(whole + place)  # noqa: E731
            after.append({})
            for place, batch in enumerate(last):
                after[-1].update({index: weights(place) / windows.accumulation / len(batch) for index in batch})
        assert [step for step in before if step] == [pytest.approx(step) for step in after]
