"""Running the passes of a torch module on a simulated GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import Variable

from zeus_core.device import SimulatedGpu, Work
from zeus_core.errors import UsageError
from zeus_core.validate import checked_number, checked_whole_number, shown

_BACKWARD_PER_FORWARD = 2.0  # two matrix products (by inputs, by weights) for each one of the forward pass


@dataclass(frozen=True)
class SimulatedBatches:
    """How the work and the memory of a pass follow from the samples in it.

    A pass of b samples takes `work.seconds * (b + half_samples) / samples`: the GPU computes as long as the samples
    need, and is blocked for the rest, as it waits for kernels that are started one by one. So the joules per sample
    fall with the batch until the arithmetic fills the GPU. Fitted to the published sweeps of the Zeus artifact
    (NSDI'23, the highest power limit, 8 to 4096 samples on a V100 and an A40), the time per sample is within 1 to 7 %
    for ResNet-50 (`half_samples` 4 to 6), 9 to 13 % for a BERT classifier (6 to 20), 20 % for DeepSpeech2 (15,
    V100 alone), and 26 to 31 % for ShuffleNet (200 to 270).

    Attributes:
        samples: The samples in a pass whose work is stated, on a GPU that is filled.
        half_samples: The samples with which the GPU computes half of the time; 0 for a GPU that is always filled.
        model_gib: Memory of weights, gradients and optimizer states, in GiB.
        sample_gib: Memory of the activations of one sample, in GiB. A pass with gradients that needs more in all than
            the board has raises `torch.OutOfMemoryError`, as a real GPU does.

    Raises:
        UsageError: An attribute is out of its range; the message names it.
    """

    samples: int
    half_samples: float = 0.0
    model_gib: float = 0.0
    sample_gib: float = 0.0

    def __post_init__(self) -> None:
        """Check every field against its range."""
        checked_whole_number("SimulatedBatches.samples", self.samples, 1)
        for name in ("half_samples", "model_gib", "sample_gib"):
            checked_number(f"SimulatedBatches.{name}", getattr(self, name), 0.0, math.inf, "at least 0, such as 5.0")

    def work_of(self, work: Work, samples: int) -> Work:
        """Return the work of a pass over some samples, from that of a pass over `self.samples`."""
        filled = samples + self.half_samples
        return replace(
            work,
            seconds=work.seconds * filled / self.samples,
            active_fraction=work.active_fraction * samples / filled,
        )

    def memory_gib(self, samples: int) -> float:
        """Return the memory that a pass with gradients needs, in GiB."""
        return self.model_gib + samples * self.sample_gib


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
        decoding: The work of a pass without gradients over one position of each text (the first tensor has two
            dimensions, and the second is 1), as `generate` makes one for each token: memory bounds it, so that it draws
            less, and hardly depends on the clock. That of `forward` if None.
        batches: How both follow from the samples in a pass, which are the length of the first tensor that is passed to
            the module, and which batches do not fit into memory; any batch fits and is the same work if None.

    Raises:
        UsageError: An argument is wrong, such as a GPU that is not simulated; the message names it.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        gpu: object,
        forward: Work,
        backward: Work | None = None,
        *,
        decoding: Work | None = None,
        batches: SimulatedBatches | None = None,
    ) -> None:
        if not isinstance(gpu, SimulatedGpu):
            raise UsageError(
                f"gpu is {shown(gpu)}; only a SimulatedGpu can simulate (set ZEUS_SIMULATED_GPUS to get one)"
            )
        self._gpu = gpu
        self._forward = forward
        if backward is None:
            backward = replace(forward, seconds=_BACKWARD_PER_FORWARD * forward.seconds)
        self._backward = backward
        self._decoding = decoding
        self._batches = batches
        self._backward_now = self._backward  # that of the latest forward pass
        self._latest_run = -1
        self._hooks = [
            module.register_forward_pre_hook(self._begin_forward, with_kwargs=True),
            module.register_forward_hook(self._end_forward),
        ]

    def detach(self) -> None:
        """Leave the module as it was."""
        for hook in self._hooks:
            hook.remove()

    def _begin_forward(self, module: torch.nn.Module, inputs: Any, keywords: Any) -> None:
        forward = self._forward
        first = next(_tensors([inputs, keywords]), None)
        if self._decoding is not None and _is_decoding(first):
            forward = self._decoding
        elif self._batches is not None and first is not None and first.ndim > 0:
            self._take_memory(self._batches, first.shape[0])
            forward = self._batches.work_of(forward, first.shape[0])
            self._backward_now = self._batches.work_of(self._backward, first.shape[0])
        self._gpu.submit(forward)

    def _take_memory(self, batches: SimulatedBatches, samples: int) -> None:
        if not torch.is_grad_enabled():
            return
        board, needed_gib = self._gpu.preset, batches.memory_gib(samples)
        self._gpu.held_gib = batches.model_gib, max(self._gpu.held_gib[1], needed_gib)
        if needed_gib > board.memory_gib:
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory (simulated): the pass needs {needed_gib:.1f} GiB, and a {board.name} has "
                f"{board.memory_gib:.1f} GiB"
            )

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
            self._gpu.submit(self._backward_now)
            Variable._execution_engine.queue_callback(self._gpu.synchronize)


def _is_decoding(first: torch.Tensor | None) -> bool:
    return first is not None and not torch.is_grad_enabled() and first.ndim == 2 and first.shape[1] == 1


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """Return the tensors in the result of a module."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        yield from _tensors(list(outputs.values()))
    elif isinstance(outputs, list | tuple):
        for output in outputs:
            yield from _tensors(output)
