"""The accelerator port: wait for the accelerator of a framework, and map the framework's GPU indices to GPUs.

Frameworks are looked up among the modules the program has already imported; none is ever imported from here.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from zeus_core.validate import checked_one_of

_MODULES = ("cuda", "xpu")  # of torch

INDEXED_TYPES = frozenset(_MODULES)
"""The types of a `torch.device` whose index is that of a GPU; ROCm's is "cuda"."""

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


class FrameworkGpu(NamedTuple):
    """A GPU as torch describes it.

    Attributes:
        uuid: Its UUID, `GPU-...`; that of ROCm may be another than its driver's.
        pci_address: Domain, bus and device, "0000:c1:00"; None where torch does not report it.
    """

    uuid: str
    pci_address: str | None

    def is_one_of(self, uuid: str, pci_addresses: Collection[str]) -> bool:
        """Whether this is the GPU with a UUID, or with one of some PCI addresses."""
        return self.uuid == uuid or self.pci_address in pci_addresses


def torch_platform() -> str | None:
    """Return what torch computes by: "hip" (ROCm), "cuda" or "xpu"; None if it is not imported, or by none."""
    version: Any = getattr(sys.modules.get("torch"), "version", None)
    return next((name for name in ("hip", "cuda", "xpu") if getattr(version, name, None)), None)


def gpu_modules() -> dict[str, Any]:
    """Return `torch.cuda`, also for ROCm, and `torch.xpu`, by the type of the device: those that have GPUs."""
    found: dict[str, Any] = {kind: getattr(sys.modules.get("torch"), kind, None) for kind in _MODULES}
    return {kind: module for kind, module in found.items() if module is not None and module.is_available()}


def _used_module() -> Any:
    """Return the module of the GPUs that this process computes by; None before that.

    Asking for more would make torch take hold of the GPUs, which must not happen before a fork; and this is each step.
    """
    torch: Any = sys.modules.get("torch")
    for kind in _MODULES:
        module = getattr(torch, kind, None)
        if module is not None and module.is_initialized():
            return module
    return None


def torch_gpus() -> list[FrameworkGpu] | None:
    """Return the GPUs by torch's indices; None if torch does not use GPUs in this process yet."""
    module = _used_module()
    if module is None:
        return None
    properties = [module.get_device_properties(index) for index in range(module.device_count())]
    return [FrameworkGpu(_uuid(getattr(found, "uuid", "")), _pci_address(found)) for found in properties]


def _uuid(uuid: object) -> str:
    return str(uuid) if str(uuid).startswith("GPU-") else f"GPU-{uuid}"


def _pci_address(properties: Any) -> str | None:
    """Return the PCI address, which the UUID of a GPU of Intel contains: `DeviceUUID` in its compute-runtime.

    It is the vendor, device, revision and domain in two bytes each, the lower first, then bus, device and function.
    """
    parts = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    numbers = [part for part in parts if type(part) is int]
    uuid = str(getattr(properties, "uuid", "")).replace("-", "").lower()
    if not numbers and uuid.startswith("8680") and len(uuid) == 32:
        code = bytes.fromhex(uuid)
        numbers = [int.from_bytes(code[6:8], "little"), code[8], code[9]]
    return "{:04x}:{:02x}:{:02x}".format(*numbers) if len(numbers) == len(parts) else None


def torch_event() -> Any:
    """Return a point in the work of torch's current GPU, at the end of its queue; None if torch uses no GPU."""
    module = _used_module()
    if module is None:
        return None
    event = module.Event(enable_timing=True)
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
    if torch is not None and torch.backends.mps.is_available():
        torch.mps.synchronize()
    module = _used_module()
    if module is None:
        return
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None) if module is getattr(torch, "cuda", None) else None
    for index in gpu_indices:
        if has_context is None or has_context(index):
            module.synchronize(index)


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
