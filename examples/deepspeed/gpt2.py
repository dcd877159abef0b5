"""The model of the example: layers like those of GPT-2, generated data, and their work on a simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from zeus_core.device import Gpu, Work
from zeus_core.pytorch import SimulatedCompute


@dataclass(frozen=True)
class Config:
    """The size of the model: the real tensors are small, as they are computed on a CPU."""

    blocks: int = 10
    width: int = 32
    heads: int = 4
    positions: int = 32
    tokens: int = 64


class Embedding(torch.nn.Module):
    """Tokens and positions."""

    blocks_worth = 0.0
    """Its time on the simulated GPU, as a multiple of that of a transformer block."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.of_tokens = torch.nn.Embedding(config.tokens, config.width)
        self.of_positions = torch.nn.Embedding(config.positions, config.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.of_tokens(tokens) + self.of_positions.weight[: tokens.shape[1]]


class Block(torch.nn.Module):
    """Attention and a feed-forward network, each with a residual connection."""

    blocks_worth = 1.0

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm_before_attention = torch.nn.LayerNorm(config.width)
        self.attention = torch.nn.Linear(config.width, 3 * config.width)
        self.projection = torch.nn.Linear(config.width, config.width)
        self.feed_forward = torch.nn.Sequential(
            torch.nn.LayerNorm(config.width),
            torch.nn.Linear(config.width, 4 * config.width),
            torch.nn.GELU(approximate="tanh"),
            torch.nn.Linear(4 * config.width, config.width),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.norm_before_attention(hidden)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.projection(attended.transpose(1, 2).flatten(2))
        return hidden + self.feed_forward(hidden)


class Head(torch.nn.Module):
    """The language-model head: a vocabulary as large as GPT-2's makes it a heavy layer."""

    blocks_worth = 1.25

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(config.width)
        self.projection = torch.nn.Linear(config.width, config.tokens, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.projection(self.norm(hidden))


def loss_of(guesses: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(guesses.flatten(0, 1), targets.flatten())


def make_module(stages: int, config: Config | None = None) -> PipelineModule:
    """Build the model, with its blocks divided among the stages; they cannot be divided evenly."""
    config = config or Config()
    blocks = [LayerSpec(Block, config) for _ in range(config.blocks)]
    layers = [LayerSpec(Embedding, config), *blocks, LayerSpec(Head, config)]
    return PipelineModule(layers, num_stages=stages, loss_fn=loss_of, partition_method="type:Block")


def microbatches(size: int, seed: int, config: Config | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield tokens and the tokens that follow them, without end: they count up by one, now and then by two."""
    config = config or Config()
    generator = torch.Generator().manual_seed(seed)
    while True:
        shape = (size, config.positions + 1)
        steps = 1 + (torch.rand(shape, generator=generator) < 0.1).long()
        first = torch.randint(config.tokens, (size, 1), generator=generator)
        sequences = (first + steps.cumsum(dim=1)) % config.tokens
        yield sequences[:, :-1], sequences[:, 1:]


def blocks_worth(module: PipelineModule) -> float:
    """Return the time of this rank's layers, as a multiple of that of a transformer block."""
    return sum(layer.blocks_worth for layer in module.forward_funcs)


def simulate(module: PipelineModule, gpu: Gpu, block_seconds: float, backward_per_forward: float) -> None:
    """Run each pass of this rank's stage on a simulated GPU too, for a time according to its layers."""
    seconds = block_seconds * blocks_worth(module)
    forward = Work(seconds, active_power_watts=330.0, active_fraction=0.97, compute_bound_fraction=0.75)
    backward = replace(forward, seconds=backward_per_forward * seconds, active_power_watts=350.0)
    SimulatedCompute(module, gpu, forward, backward)
