"""The contract of a `TrainingLoop`, and of what is trained over one, for every framework."""

from abc import ABC, abstractmethod
from contextlib import suppress

import pytest
import torch
from torch.utils.data import Dataset

from zeus_core.batches.pytorch.kept_state import kept_state, random_state

SAMPLES, BATCH, ACCUMULATION = 24, 2, 4  # three whole steps in an epoch


class Indexed(Dataset):
    """Samples that are told apart by their index."""

    def __init__(self):
        draw = torch.Generator().manual_seed(1)
        self.inputs, self.targets = torch.randn(SAMPLES, 3, generator=draw), torch.randn(SAMPLES, 4, generator=draw)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "targets": self.targets[index], "index": torch.tensor(index)}


class Network(torch.nn.Module):
    """Notes the indices of the samples that it is trained on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 4)
        self.seen = []

    def forward(self, inputs, targets, index):
        if self.training and torch.is_grad_enabled():
            self.seen += index.tolist()
        return {"loss": (self.layer(inputs).tanh() - targets).square().mean()}

    @property
    def weights(self):
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters()])


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


class Stop(BaseException):
    """Ends a training, like Ctrl-C."""


class TrainingLoopContract(ABC):
    """Derive a class for each framework: a training on `Indexed` with a `Network`, on one rank."""

    @abstractmethod
    def with_loop(self, folder, check):
        """Begin a training, and call `check` with its loop when all is prepared."""

    @abstractmethod
    def trained(self, folder, *, micro_batch=None, uneven=False):
        """Train for two epochs; return the `Network`. `uneven` gives the batches of the one rank there is."""

    @abstractmethod
    def resumed(self, folder):
        """Train on uneven batches for two epochs, cut within one and resumed; return both of the `Network`s."""

    def checked(self, folder, check):
        """The answer of a check, once it was made."""
        answers = []
        with suppress(Stop):
            self.with_loop(folder, lambda loop: answers.append(check(loop)))
        assert len(answers) == 1, "there was no training, or two"
        return answers[0]

    def test_it_says_what_a_step_is(self, tmp_path):
        def check(loop):
            assert loop.obstacle(None) is None
            assert loop.batch_size == BATCH
            assert loop.samples_per_step == BATCH * ACCUMULATION
            assert {BATCH, 2 * BATCH, 4 * BATCH} <= set(loop.sizes)
            assert (loop.world.rank, loop.world.size) == (0, 1)
            assert loop.device == torch.device("cpu")
            (model,) = loop.models
            assert sum(parameter.numel() for parameter in model.parameters()) == 16
            loop.check_averaging()
            loop.check_gradients()

        self.checked(tmp_path, check)

    def test_a_size_that_divides_no_step_is_refused(self, tmp_path):
        from zeus_core.batches.pytorch.micro_batch import is_refused

        assert self.checked(tmp_path, lambda loop: [is_refused(loop, size) for size in (BATCH, 5)]) == [False, True]

    def test_gradients_and_losses_of_a_step_are_the_same_at_every_size(self, tmp_path):
        def check(loop):
            (model,) = loop.models
            results = []
            with kept_state(model), loop.probing():
                samples = loop.samples()
                for size in (BATCH, 4 * BATCH):
                    step = samples.batches(size)
                    assert [len(batch["index"]) for batch in [*step, samples.largest(size)]] == [size] * (len(step) + 1)
                    with torch.no_grad():
                        loss = sum(float(loop.loss_of(batch, step)) for batch in step)
                    for batch in step:
                        loop.train_on(batch, step)
                    results.append((loss, gradients(model)))
                    model.zero_grad()
            return results

        (loss, gradient), (other_loss, other) = self.checked(tmp_path, check)
        assert loss == pytest.approx(other_loss, rel=1e-5)
        assert torch.allclose(gradient, other, atol=1e-6)
        assert gradient.abs().max() > 0.01

    def test_a_probe_leaves_no_trace(self, tmp_path):
        def check(loop):
            (model,) = loop.models
            before, restore = model.weights.clone(), random_state()
            expected = torch.rand(3)
            restore()
            with kept_state(model), loop.probing():
                step = loop.samples().batches(BATCH)
                loop.train_on(step[0], step)
            assert torch.equal(torch.rand(3), expected)
            assert torch.equal(model.weights, before)
            return model.seen, [parameter.grad for parameter in model.parameters()]

        seen, grads = self.checked(tmp_path, check)
        assert seen == []
        assert grads == [None, None]

    @pytest.mark.parametrize("size", [2 * BATCH, 4 * BATCH])
    def test_another_micro_batch_trains_on_the_same_samples_in_the_same_steps(self, tmp_path, size):
        before, after = (self.trained(tmp_path / str(one), micro_batch=one) for one in (None, size))
        self.same(before, after)

    def test_batches_by_rank_train_on_each_sample_once(self, tmp_path):
        self.same(self.trained(tmp_path / "before"), self.trained(tmp_path / "after", uneven=True))

    def test_a_run_that_resumes_within_an_epoch_goes_on_at_its_place(self, tmp_path):
        whole = self.trained(tmp_path / "whole", uneven=True)
        first, rest = self.resumed(tmp_path / "parts")
        assert first.seen + rest.seen == whole.seen
        assert len(first.seen) % SAMPLES > 0
        assert torch.allclose(rest.weights, whole.weights, atol=1e-6)

    def same(self, before, after):
        epochs = [after.seen[:SAMPLES], after.seen[SAMPLES:]]
        assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * 2
        assert after.seen == before.seen
        assert torch.allclose(before.weights, after.weights, atol=1e-6)
