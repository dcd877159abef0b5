"""A small loop written with accelerate, which runs on a simulated GPU: what the tests here train."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from zeus_core.device import SimulatedGpu, Work
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface.accelerate import ZeusTracker

FORWARD = Work(0.3, 484.9, 0.938, 0.744)
BACKWARD = Work(0.6, 484.9, 0.938, 0.744)


class Loop:
    """Without a GPU, nothing is simulated; with none of our code around it, it is a loop as anybody's."""

    def __init__(self, folder: Path, gpu: SimulatedGpu | None, samples: int = 64, batch_size: int = 4, **arguments):
        torch.manual_seed(0)
        self.folder = folder
        settings = {"cpu": True, "project_dir": str(folder), "log_with": ZeusTracker("run", folder), **arguments}
        self.accelerator = Accelerator(**settings)
        self.model = torch.nn.Linear(3, 1)
        if gpu is not None:
            SimulatedCompute(self.model, gpu, FORWARD, BACKWARD)
        batches = DataLoader(TensorDataset(torch.randn(samples, 3), torch.randn(samples, 1)), batch_size, shuffle=True)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.model, self.optimizer, self.batches = self.accelerator.prepare(self.model, optimizer, batches)
        self.accelerator.init_trackers("run")
        self.step = 0
        self.losses: list[float] = []

    def train(self, steps: int) -> Iterator[int]:
        """Train for some optimizer steps; yields after each."""
        end = self.step + steps
        while self.step < end:
            for inputs, targets in self.batches:
                self.train_batch(inputs, targets)
                if self.accelerator.sync_gradients:
                    self.step += 1
                    yield self.step
                if self.step == end:
                    return

    def train_batch(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        with self.accelerator.accumulate(self.model):
            loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def train_and_log(self, steps: int, every: int = 1) -> None:
        for step in self.train(steps):
            if step % every == 0:
                self.accelerator.log({"loss": self.losses[-1]}, step=step)

    @torch.no_grad()
    def evaluate(self, passes: int = 8) -> None:
        self.model.eval()
        for _ in range(passes):
            self.model(torch.ones(1, 3))
        self.model.train()

    def logged(self) -> list[dict[str, float]]:
        """Values logged to the tracker "zeus"."""
        path = ZeusTracker("run", self.folder).path
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class SlowState:
    """Something to checkpoint that keeps the GPU busy while it is saved or loaded."""

    def __init__(self, gpu: SimulatedGpu, work: Work) -> None:
        self.gpu, self.work = gpu, work

    def state_dict(self) -> dict[str, float]:
        self.gpu.execute(self.work)
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.gpu.execute(self.work)
