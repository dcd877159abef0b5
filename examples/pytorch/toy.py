"""The model of the examples: a small language model of bytes, on a simulated GPU if requested."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from zeus_core.device import Work
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedCompute

SEQUENCE_BYTES = 65
TRAINING_BYTES = 800_000
EVALUATION_BYTES = 4_000
BATCH_SIZE = 8

# A forward pass of GPT-3 XL as fitted to its published sweep on A100s, shortened for a demonstration.
FORWARD_WORK = Work(seconds=0.01, active_power_watts=484.9, active_fraction=0.938, compute_bound_fraction=0.744)


class LanguageModel(torch.nn.Module):
    """Predicts the next byte; called with sequences, it returns its loss."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(width, 256)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        tokens, targets = sequences[:, :-1], sequences[:, 1:]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        guesses = self.head(self.layer(self.embedding(tokens), src_mask=mask, is_causal=True))
        return torch.nn.functional.cross_entropy(guesses.flatten(0, 1), targets.flatten())


def training_and_evaluation_batches(
    rank: int = 0, world_size: int = 1
) -> tuple[DataLoader[torch.Tensor], DataLoader[torch.Tensor]]:
    """Return this rank's share of sequences from the standard library's sources: text that every machine has."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(path.read_bytes() for path in paths)[: TRAINING_BYTES + EVALUATION_BYTES]
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return (
        _batches(tokens[EVALUATION_BYTES:], rank, world_size),
        _batches(tokens[:EVALUATION_BYTES], rank, world_size),
    )


def _batches(tokens: torch.Tensor, rank: int, world_size: int) -> DataLoader[torch.Tensor]:
    sequences: Dataset[torch.Tensor] = tokens[: len(tokens) // SEQUENCE_BYTES * SEQUENCE_BYTES].view(  # type: ignore[assignment]
        -1, SEQUENCE_BYTES
    )
    sampler = DistributedSampler(sequences, world_size, rank, drop_last=True)
    return DataLoader(sequences, BATCH_SIZE, sampler=sampler, drop_last=True)


@torch.no_grad()
def evaluate(model: torch.nn.Module, batches: DataLoader[torch.Tensor], device: torch.device) -> float:
    """Return the mean loss."""
    model.eval()
    losses = [model(batch.to(device)).item() for batch in batches]
    model.train()
    return sum(losses) / len(losses)


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments common to all examples."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", metavar="MODEL", help="GPU to simulate for each process, such as A100-SXM4-80GB")
    parser.add_argument("--output", type=Path, default=Path("zeus-pytorch"), help="folder for all files (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps (%(default)s)")
    return parser


def prepare(arguments: argparse.Namespace) -> None:
    """Simulate GPUs if requested, or check that there is one."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    if arguments.simulate:
        os.environ["ZEUS_SIMULATED_GPUS"] = f"{arguments.simulate}:{os.environ.get('LOCAL_WORLD_SIZE', 1)}"
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; simulate one: --simulate A100-SXM4-80GB")
    torch.manual_seed(0)


def simulate(model: torch.nn.Module, monitor: ZeusMonitor) -> None:
    """Run the passes of the model on the simulated GPU of this process too."""
    SimulatedCompute(model, monitor.gpus[monitor.gpu_indices[0]], FORWARD_WORK)
