"""The load of `zeus-core doctor --measure`: steps of a small transformer in bf16, and what only CUDA can tell."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from zeus_core.device import Gpu, SimulatedGpu, Work
from zeus_core.errors import NotSupportedError
from zeus_core.ports import TimeSource
from zeus_core.ports.accelerator import torch_gpus
from zeus_core.pytorch import SimulatedCompute
from zeus_core.pytorch.torch_events import CudaEvents


@dataclass(frozen=True)
class _Size:
    """The size of the transformer."""

    width: int
    layers: int
    tokens: int
    samples: int


# 200 million parameters, which with Adam's states take 3.2 GB of any training GPU; 5 TFLOP, about 15 ms on an H100.
_ON_CUDA = _Size(width=2048, layers=4, tokens=512, samples=8)
_ON_CPU = _Size(width=32, layers=1, tokens=8, samples=2)  # milliseconds
_SIMULATED_STEP_SECONDS = 0.02
_CYCLES_TO_TIME = 50_000_000  # about 30 ms: the speed of the clock that a waiting kernel counts


class TorchLoad:
    """Training steps in bf16 on the CUDA device that is `gpu`; on the CPU where torch has no such device.

    Beside the CPU, a simulated GPU runs simulated steps.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._device = _cuda_device(gpu)
        self.steps_in_queue: int = 4 if self._device.type == "cuda" else 1
        place = str(self._device) if self._device.type == "cuda" else "the CPU: torch has no CUDA device for this GPU"
        self.name: str = f"a transformer's training step in bf16, torch {torch.__version__} on {place}"
        size = _ON_CUDA if self._device.type == "cuda" else _ON_CPU
        layer = torch.nn.TransformerEncoderLayer(
            size.width, max(size.width // 128, 1), 4 * size.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self._model = torch.nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False).to(self._device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5)
        self._batch = torch.randn(size.samples, size.tokens, size.width, device=self._device)
        self._seconds_per_cycle: float | None = None
        if isinstance(gpu, SimulatedGpu):
            active_watts = 0.7 * gpu.preset.limit_range_watts.highest_watts
            SimulatedCompute(self._model, gpu, Work(_SIMULATED_STEP_SECONDS / 3, active_watts))

    def step(self) -> None:
        """Submit one step."""
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            loss = (self._model(self._batch) - self._batch).float().square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def block(self, seconds: float) -> None:
        """Run a kernel of one thread that waits, as the kernel of a collective does for other ranks."""
        self._require_cuda()
        if self._seconds_per_cycle is None:
            self.synchronize()
            begin = time.perf_counter()
            self._sleep(_CYCLES_TO_TIME)
            self._seconds_per_cycle = (time.perf_counter() - begin) / _CYCLES_TO_TIME
        self._sleep(int(seconds / self._seconds_per_cycle))

    def mark_errors_seconds(self, time_source: TimeSource, seconds: float) -> Iterator[tuple[float, float, bool]]:
        """Compare marks in the stream with CUDA's own events, step after step.

        Args:
            time_source: Times the marks.
            seconds: How long.

        Yields:
            The time of a step by two marks, less that by two events around them; how long the host waited to see the
            second one; and whether its time lies between the moments at which the host submitted and saw it.

        Raises:
            NotSupportedError: There is no CUDA device.
        """
        self._require_cuda()
        marks, end = CudaEvents(self._device, time_source), time_source.now() + seconds
        while time_source.now() < end:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            stream = torch.cuda.current_stream(self._device)
            first = marks()
            events[0].record(stream)
            self.step()
            events[1].record(stream)
            submitted_seconds, second = time_source.now(), marks()
            second.wait()
            seen_seconds = time_source.now()
            begin, ended = first.seconds(), second.seconds()
            if begin is None or ended is None:
                continue
            difference = ended - begin - events[0].elapsed_time(events[1]) / 1000.0
            yield difference, seen_seconds - ended, submitted_seconds <= ended <= seen_seconds

    def _sleep(self, cycles: int) -> None:
        with torch.cuda.device(self._device):
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        self.synchronize()

    def _require_cuda(self) -> None:
        if self._device.type != "cuda":
            raise NotSupportedError("torch has no CUDA device for this GPU")


def _cuda_device(gpu: Gpu) -> torch.device:
    if not gpu.is_simulated and torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]
        for index, place in enumerate(torch_gpus() or []):
            if place.is_one_of(gpu.uuid, gpu.pci_addresses):
                return torch.device("cuda", index)
    return torch.device("cpu")
