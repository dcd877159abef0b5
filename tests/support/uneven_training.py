"""Small trainings to compare: several ranks with batches that differ, and one process with the whole batch."""

import contextlib

import torch
from torch.utils.data import default_collate

from zeus_core.batches.pytorch.uneven_sampler import EpochOrder

VOCABULARY = 11
IGNORED = -100
STEPS = 20
SEED = 3


def samples(count):
    """Inputs and targets that differ by sample, in double precision."""
    inputs = torch.arange(count * 6, dtype=torch.float64).mul(0.37).sin().reshape(count, 6)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).square().sin())


def sentences(count):
    """Token sequences of lengths 2 to 9, padded to 9, with labels that say which tokens count."""
    length = torch.arange(count) % 8 + 2
    tokens = torch.arange(count * 9).mul(7).remainder(VOCABULARY - 1).add(1).reshape(count, 9)
    real = torch.arange(9) < length[:, None]
    return [
        {"input_ids": row.where(mask, 0), "attention_mask": mask.long(), "labels": row.where(mask, IGNORED)}
        for row, mask in zip(tokens, real, strict=True)
    ]


def tokens_in(batch):
    """The tokens that a causal language model predicts."""
    return (batch["labels"][:, 1:] != IGNORED).sum()


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.double()

    def forward(self, inputs):
        return self.layers(inputs)


class LanguageModel(torch.nn.Module):
    """Returns the mean loss over the tokens of a batch, as those of transformers do, but in double precision."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(VOCABULARY, 8)
        self.mix = torch.nn.GRU(8, 8, batch_first=True)
        self.head = torch.nn.Linear(8, VOCABULARY)
        self.double()

    def forward(self, input_ids, labels, attention_mask=None):
        logits = self.head(self.mix(self.embedding(input_ids))[0])
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def loss_of(network, batch):
    if isinstance(batch, dict):
        return network(**batch)["loss"]
    return torch.nn.functional.mse_loss(network(batch[0]), batch[1])


def optimizer(kind, parameters):
    if kind == "SGD":
        return torch.optim.SGD(parameters, 0.05, momentum=0.9)
    return torch.optim.AdamW(parameters, 0.01)


def train(network, loader, weighted, kind, accumulation=1, no_sync=contextlib.nullcontext, on_step=lambda step: None):
    """Train for 20 steps as a loop of anybody's does."""
    updates = optimizer(kind, network.parameters())
    step = passes = 0
    while step < STEPS:
        for batch in loader:
            passes += 1
            is_last = passes % accumulation == 0
            with contextlib.nullcontext() if is_last else no_sync():
                (weighted(loss_of(network, batch)) / accumulation).backward()
            if is_last:
                updates.step()
                updates.zero_grad()
                step += 1
                on_step(step)
            if step == STEPS:
                break


class WholeBatches:
    """The global batches that one process would train on."""

    def __init__(self, dataset, size, drop_last=False, is_shuffled=True):
        self.dataset, self.size, self.drop_last = dataset, size, drop_last
        self.order = EpochOrder(len(dataset), SEED, is_shuffled)

    def __iter__(self):
        indices = list(self.order)
        for begin in range(0, len(indices), self.size):
            part = indices[begin : begin + self.size]
            if len(part) == self.size or not self.drop_last:
                yield default_collate([self.dataset[index] for index in part])
        self.order.set_epoch(self.order.epoch + 1)


def train_alone(make_network, dataset, size, kind, accumulation=1, drop_last=False):
    network = make_network()
    train(network, WholeBatches(dataset, size, drop_last), lambda loss: loss, kind, accumulation)
    return flat(network)


def check_followed(results, alone):
    """All ranks have followed one plan, with the parameters of one process, and restored their limits.

    Args:
        results: Of each rank its parameters, batches, plan, and the limit before and after training.
        alone: The parameters of one process.
    """
    for parameters, batches, plan, original, at_the_end in results:
        assert difference(parameters, alone) < 1e-9
        assert batches == tuple(share["batch"] for share in plan["ranks"])
        assert batches[0] > batches[1]
        assert at_the_end == original
        assert plan == results[0][2]


def flat(module):
    """All parameters in one list, to send between processes."""
    whole = (getattr(parameter, "full_tensor", lambda own=parameter: own)() for parameter in module.parameters())
    return torch.cat([parameter.detach().flatten() for parameter in whole]).tolist()


def difference(first, second):
    return max(abs(one - other) for one, other in zip(first, second, strict=True))
