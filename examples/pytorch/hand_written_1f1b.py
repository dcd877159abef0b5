"""A pipeline written by hand (1F1B, over torch.distributed), whose clocks are planned during training.

It shows what the integration of another framework has to do: report to the optimizer when a step and each of its
instructions begins and ends. The numbered lines are all it takes.

    torchrun --nproc-per-node 2 examples/pytorch/hand_written_1f1b.py --simulate A100-SXM4-80GB
"""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed
from pipeline_toy import (
    LENGTH,
    MICROBATCH_SIZE,
    MICROBATCHES,
    SETTINGS,
    WIDTH,
    Stage,
    loss_of,
    make_batch,
    parsed_arguments,
    report,
    set_up,
    steps_to_train,
)

from zeus_core.optimizer import PipelineFrequencyOptimizer
from zeus_core.pipeline import PipelineRank
from zeus_core.pytorch import device_events_for, torch_world


class Pipeline:
    """One rank of the pipeline. Each microbatch passes forward through the stages, and its gradient backward."""

    def __init__(self, stage: Stage, device: torch.device, clocks: PipelineFrequencyOptimizer) -> None:
        self.stage = stage
        self.device = device
        self.clocks = clocks
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.under_way: deque[tuple[torch.Tensor, torch.Tensor]] = deque()  # inputs and outputs, backward to come
        self.sends: list[torch.distributed.Work] = []
        self.optimizer = torch.optim.AdamW(stage.parameters(), 3e-3)
        self.losses: list[float] = []

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> None:
        self.clocks.on_step_begin()  # 1
        pairs = iter(zip(tokens.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True))
        ahead = min(self.size - self.rank - 1, MICROBATCHES)
        for _ in range(ahead):
            self.forward(*next(pairs))
        for pair in pairs:
            self.forward(*pair)
            self.backward()
        for _ in range(ahead):
            self.backward()
        for send in self.sends:
            send.wait()
        self.sends.clear()
        self.clocks.on_instruction_begin("optimizer-step")  # 2
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.clocks.on_instruction_end("optimizer-step")  # 3
        self.clocks.on_step_end()  # 4

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> None:
        inputs = tokens if self.rank == 0 else self.receive(self.rank - 1).requires_grad_()
        self.clocks.on_instruction_begin("forward")  # 5
        outputs = self.stage(inputs)
        if self.rank == self.size - 1:
            outputs = loss_of(outputs, targets) / MICROBATCHES
            self.losses.append(outputs.item())
        self.clocks.on_instruction_end("forward")  # 6
        if self.rank < self.size - 1:
            self.send(outputs, self.rank + 1)
        self.under_way.append((inputs, outputs))

    def backward(self) -> None:
        inputs, outputs = self.under_way.popleft()
        gradient = None if self.rank == self.size - 1 else self.receive(self.rank + 1)
        self.clocks.on_instruction_begin("backward")  # 7
        outputs.backward(gradient)
        self.clocks.on_instruction_end("backward")  # 8
        if self.rank > 0:
            assert inputs.grad is not None
            self.send(inputs.grad, self.rank - 1)

    def receive(self, rank: int) -> torch.Tensor:
        tensor = torch.empty(MICROBATCH_SIZE, LENGTH, WIDTH, device=self.device)
        torch.distributed.recv(tensor, rank)
        return tensor

    def send(self, tensor: torch.Tensor, rank: int) -> None:
        self.sends.append(torch.distributed.isend(tensor.detach().contiguous(), rank))


def main() -> None:
    arguments = parsed_arguments(__doc__ or "")
    stage, device, monitor = set_up(arguments)

    clocks = PipelineFrequencyOptimizer(  # 9
        monitor,
        PipelineRank(torch.distributed.get_rank()),
        SETTINGS,
        world=torch_world(),
        identity={"model": "toy", "layers": stage.layer_count},
        device_events=device_events_for(device, monitor.time_source),
    )
    with clocks:  # 10
        pipeline = Pipeline(stage, device, clocks)
        for _ in steps_to_train(arguments.steps, clocks):
            pipeline.step(*make_batch(device))
        report(clocks)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
