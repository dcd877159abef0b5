"""Ranks with simulated GPUs of different models, in virtual time: each waits for the slowest rank in each step."""

import os

import torch
import torch.distributed
from torch.optim.optimizer import register_optimizer_step_post_hook

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedBatches, SimulatedCompute
from zeus_core.testing import VirtualTime

# A forward pass over 32 samples; each board takes the power that it took in published trainings.
SECONDS = {"A100-SXM4-80GB": 0.1, "V100-SXM2-32GB": 0.2, "A40": 0.15}
WATTS = {"A100-SXM4-80GB": 380.0, "V100-SXM2-32GB": 260.0, "A40": 270.0}
BATCHES = SimulatedBatches(32, half_samples=4.0)


class SimulatedRank:
    """The GPU of a rank of a job, which takes the time of every pass of a network."""

    def __init__(self, models, network, batches=BATCHES, **gpu_arguments):
        self.model = models[int(os.environ["RANK"])]
        self.time_source = VirtualTime()
        self.gpu = SimulatedGpu(find_preset(self.model), time_source=self.time_source, **gpu_arguments)
        self.monitor = ZeusMonitor(gpus=[self.gpu], cpu_indices=[], time_source=self.time_source)
        forward = Work(SECONDS[self.model], WATTS[self.model], 0.95, 0.75)
        SimulatedCompute(network, self.gpu, forward, batches=batches)
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.wait_for_all())

    def wait_for_all(self):
        """As in the exchange of gradients, of which the others' time is not simulated."""
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            now = torch.tensor(self.time_source.now(), dtype=torch.float64)
            torch.distributed.all_reduce(now, torch.distributed.ReduceOp.MAX)
            self.time_source.advance(now.item() - self.time_source.now())

    def joules_of_all(self):
        joules = torch.tensor(self.gpu.exact_energy_joules(), dtype=torch.float64)
        torch.distributed.all_reduce(joules)
        return joules.item()
