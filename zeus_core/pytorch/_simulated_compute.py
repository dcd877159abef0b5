"""Running the passes of a torch module on a simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import Variable

from zeus_core._validate import checked_instance, shown
from zeus_core.device import SimulatedGpu, Work
from zeus_core.errors import UsageError

__all__ = ["SimulatedCompute"]

_BACKWARD_PER_FORWARD = 2.0  # two matrix products (by inputs, by weights) for each one of the forward pass


class SimulatedCompute:
    """Runs each pass of a module on a simulated GPU too.

    The real computation runs wherever the module is (on the CPU, say), while the simulated GPU determines time and
    energy: a pass lasts as long as the slower of the two. The forward pass is that of the module; the backward pass is
    the whole run of autograd that reaches one of the module's outputs. Without gradients, as in evaluation, there is no
    backward pass.

    Args:
        module: Any module.
        gpu: The GPU, for example `monitor.gpus[0]` if `ZEUS_SIMULATED_GPUS` is set.
        forward: The work of one forward pass.
        backward: The work of one backward pass; twice as long as the forward pass if None.

    Raises:
        UsageError: An argument is wrong, such as a GPU that is not simulated; the message names it.
    """

    def __init__(self, module: torch.nn.Module, gpu: object, forward: Work, backward: Work | None = None) -> None:
        if not isinstance(gpu, SimulatedGpu):
            raise UsageError(
                f"gpu is {shown(gpu)}; only a SimulatedGpu can simulate (set ZEUS_SIMULATED_GPUS to get one)"
            )
        self._gpu = gpu
        checked_instance("module", module, torch.nn.Module, "torch.nn.Linear(8, 8)")
        self._forward = checked_instance("forward", forward, Work, "Work(0.1, 300.0)")
        if backward is None:
            backward = replace(forward, seconds=_BACKWARD_PER_FORWARD * forward.seconds)
        self._backward = checked_instance("backward", backward, Work, "Work(0.2, 300.0)")
        self._latest_run = -1
        self._hooks = [
            module.register_forward_pre_hook(self._begin_forward),
            module.register_forward_hook(self._end_forward),
        ]

    def detach(self) -> None:
        """Leave the module as it was."""
        for hook in self._hooks:
            hook.remove()

    def _begin_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        self._gpu.submit(self._forward)

    def _end_forward(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        self._gpu.synchronize()
        for tensor in _tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]

    def _begin_backward(self, gradient: torch.Tensor) -> None:
        # Only the autograd engine knows which gradients belong to one run, and when the run is over. It is asked in the
        # same way by torch.autograd.graph and DistributedDataParallel.
        run = torch._C._current_graph_task_id()
        if run != self._latest_run:
            self._latest_run = run
            self._gpu.submit(self._backward)
            Variable._execution_engine.queue_callback(self._gpu.synchronize)


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """Return the tensors in the result of a module."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        yield from _tensors(list(outputs.values()))
    elif isinstance(outputs, list | tuple):
        for output in outputs:
            yield from _tensors(output)
