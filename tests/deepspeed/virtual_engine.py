"""Real engines of DeepSpeed in virtual time."""

import deepspeed
import torch

from tests.deepspeed.engines import WIDTH, config, make_module
from tests.support.virtual_time import VirtualOptimizer, virtual_gpu, work_of
from zeus_core.pytorch import SimulatedCompute
from zeus_deepspeed._perseus import attach


def batches():
    """Microbatches without end."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(2, WIDTH, generator=generator), torch.randn(2, WIDTH, generator=generator)


class Trainer:
    """One rank: an engine, and Perseus with a `VirtualOptimizer` if it is enabled."""

    def __init__(self, times, stages, microbatches, model, pipelines=1, perseus=None, module=None, **blocks):
        module = make_module(stages, pipelines, layers=2 * stages, **(module or {}))
        block = {"enabled": True, "monitor_events": False, **(perseus or {})}
        blocks = {"gradient_accumulation_steps": microbatches, "perseus": block, **blocks}
        parameters = list(module.parameters())
        self.engine = deepspeed.initialize(model=module, model_parameters=parameters, config=config(**blocks))[0]
        self.gpu, self.time_source = virtual_gpu(model, self.engine.global_rank)
        self.optimizer = None
        self.losses = []
        self._times, self._model = times, model
        self._data = batches()
        attach(self.engine, self._make_optimizer)
        self._compute = None
        self.slow_down(1.0)

    def _make_optimizer(self, monitor, pipeline_rank, settings, *, world, identity, device_events):
        options = {"world": world, "identity": identity}
        self.optimizer = VirtualOptimizer(self.gpu, self.time_source, self._times, pipeline_rank, settings, **options)
        return self.optimizer

    def slow_down(self, factor):
        """Make all further passes of this rank longer by a factor."""
        if self._compute is not None:
            self._compute.detach()
        forward, backward = (
            work_of(self.engine.stage_id, kind, self._model, factor) for kind in ("forward", "backward")
        )
        self._compute = SimulatedCompute(self.engine.module, self.gpu, forward, backward)

    def train(self, steps):
        for _ in range(steps):
            self.losses.append(self.engine.train_batch(self._data).item())

    def evaluate(self):
        return self.engine.eval_batch(batches()).item()

    def end(self):
        """Destroy the engine; returns the record of this rank, or without Perseus the losses."""
        self.engine.destroy()
        if self.optimizer is None:
            return self.losses
        self.optimizer.record.losses = self.losses
        return self.optimizer.record
