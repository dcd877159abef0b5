"""The accelerator port: wait for the accelerator of a framework, and map the framework's GPU indices to UUIDs.

Frameworks are looked up among the modules the program has already imported; none is ever imported from here.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from zeus_core.validate import checked_one_of

Synchronize = Callable[[Sequence[int]], None]
"""Waits until the GPUs with the given framework indices have finished what was submitted to them."""


def synchronize_with(framework: str) -> Synchronize:
    """Return a function that waits for the GPUs of a framework.

    Args:
        framework: "torch", "jax" or "cupy".

    Raises:
        UsageError: Another name.
    """
    return _FRAMEWORKS[checked_one_of("sync_execution_with", framework, _FRAMEWORKS)]


def torch_gpu_uuids() -> list[str] | None:
    """Return the UUIDs of the GPUs by torch's indices; None if torch does not use GPUs in this process yet.

    Asking earlier would make torch take hold of the GPUs, which must not happen before a fork.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    uuids = [str(getattr(properties_of_gpu, "uuid", "")) for properties_of_gpu in properties]
    return [uuid if uuid.startswith("GPU-") else f"GPU-{uuid}" for uuid in uuids]


def torch_event() -> Any:
    """Return a point in the work of torch's current GPU, at the end of its queue; None if torch uses no GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_after(event: Any) -> float | None:
    """Return how long after an event the GPU finishes its work, and wait for that; 0 if it has not reached the event.

    None without an event, or if the program has changed to another GPU since.
    """
    if event is None:
        return None
    if not event.query():
        return 0.0
    last = torch_event()
    last.synchronize()
    return float(event.elapsed_time(last)) / 1000.0 if last.device == event.device else None


def _synchronize_torch(gpu_indices: Sequence[int]) -> None:
    torch: Any = sys.modules.get("torch")
    # A GPU the process has not touched has nothing to wait for, and waiting would create a context on it.
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    for index in gpu_indices:
        if has_context is None or has_context(index):
            torch.cuda.synchronize(index)


def _synchronize_jax(gpu_indices: Sequence[int]) -> None:
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return
    # A GPU runs the computations of a process one after the other, but a transfer beside them. A CPU orders only those
    # that one thread has dispatched.
    last = [
        -jax.device_put(0.0, device)
        for number, device in enumerate(jax.local_devices())
        if getattr(device, "local_hardware_id", number) in gpu_indices
    ]
    for result in last:
        result.block_until_ready()


def _synchronize_cupy(gpu_indices: Sequence[int]) -> None:
    cupy: Any = sys.modules.get("cupy")
    if cupy is None or not cupy.cuda.is_available():
        return
    for index in gpu_indices:
        if index < cupy.cuda.runtime.getDeviceCount():
            cupy.cuda.Device(index).synchronize()  # all streams of the process


_FRAMEWORKS: dict[str, Synchronize] = {
    "torch": _synchronize_torch,
    "jax": _synchronize_jax,
    "cupy": _synchronize_cupy,
}
