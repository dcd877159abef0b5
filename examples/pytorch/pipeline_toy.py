"""The model of the pipeline examples: a stage of a small model on each rank, on a simulated GPU if requested."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed
from toy import FORWARD_WORK, argument_parser, prepare

from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import PipelineFrequencyOptimizer
from zeus_core.pipeline import PipelineFrequencySettings
from zeus_core.pytorch import SimulatedCompute

TOKENS = 64
WIDTH = 32
MICROBATCHES = 4
MICROBATCH_SIZE = 2
LENGTH = 32

# A short profile, to suit a demonstration.
SETTINGS = PipelineFrequencySettings(warmup_steps=2, max_clocks=5, profile_instructions=4)


class Stage(torch.nn.Module):
    """The embedding and one layer on the first rank, two layers on the others, and the head on the last."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.layer_count = 1 if rank == 0 else 2
        self.embedding = torch.nn.Embedding(TOKENS, WIDTH) if rank == 0 else torch.nn.Identity()
        layers = [
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, batch_first=True) for _ in range(self.layer_count)
        ]
        self.layers = torch.nn.Sequential(*layers)
        self.head = torch.nn.Linear(WIDTH, TOKENS) if rank == size - 1 else torch.nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(inputs)))


def loss_of(guesses: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(guesses.flatten(0, 1), targets.flatten())


def make_batch(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and the target of each: the same on every rank."""
    tokens = torch.randint(TOKENS, (MICROBATCHES * MICROBATCH_SIZE, LENGTH), device=device)
    return tokens, (tokens + 1) % TOKENS


def parsed_arguments(description: str) -> argparse.Namespace:
    parser = argument_parser(description)
    parser.set_defaults(steps=200)  # at most
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("a pipeline has several ranks: torchrun --nproc-per-node 2 ...")
    prepare(arguments)
    return arguments


def set_up(arguments: argparse.Namespace) -> tuple[Stage, torch.device, ZeusMonitor]:
    """Return the stage of this rank, its device, and its monitor."""
    torch.distributed.init_process_group("gloo" if arguments.simulate else "nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu" if arguments.simulate else f"cuda:{local_rank}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    stage = Stage(torch.distributed.get_rank(), torch.distributed.get_world_size()).to(device)
    monitor = ZeusMonitor(gpu_indices=[local_rank], cpu_indices=[])
    if arguments.simulate:
        work = replace(FORWARD_WORK, seconds=0.02 * stage.layer_count, active_power_watts=340.0)
        SimulatedCompute(stage, monitor.gpus[local_rank], work)
    return stage, device, monitor


def steps_to_train(max_steps: int, optimizer: PipelineFrequencyOptimizer) -> Iterator[int]:
    """Ends once a plan was measured, as this is a demonstration; real training would continue with its plan."""
    phase = None
    for step in range(max_steps):
        if optimizer.phase is not phase and torch.distributed.get_rank() == 0:
            phase = optimizer.phase
            print(f"step {step + 1} of at most {max_steps}: {phase.value}", flush=True)
        yield step
        if optimizer.measured is not None or optimizer.phase.is_without_plan:
            return


def report(optimizer: PipelineFrequencyOptimizer) -> None:
    """Print the outcome, on the first rank. Call this before the optimizer is closed."""
    if torch.distributed.get_rank() > 0:
        return
    before, after = optimizer.baseline, optimizer.measured
    print(f"{optimizer.phase.value}; clocks of the first rank, in MHz: {optimizer.clocks_mhz}")
    if before is not None and after is not None:
        print(f"before: {before.step_seconds:.3f} s and {before.energy_joules:.1f} J per iteration")
        print(f"after:  {after.step_seconds:.3f} s and {after.energy_joules:.1f} J per iteration")
        result = optimizer.result()
        print(f"The saving of the plan is {result['saving']}, for {result['slowdown']}.")
