"""Ports: the outside things the package depends on, each a protocol and its ordinary implementation."""

from zeus_core.ports._accelerator import Synchronize, synchronize_with, torch_gpu_uuids
from zeus_core.ports._background import Background, ThreadBackground
from zeus_core.ports._device_events import DeviceEvent, DeviceEvents, HostEvents
from zeus_core.ports._time_source import MonotonicTime, TimeSource
from zeus_core.ports._world import SoloWorld, World

__all__ = [
    "Background",
    "DeviceEvent",
    "DeviceEvents",
    "HostEvents",
    "MonotonicTime",
    "SoloWorld",
    "Synchronize",
    "ThreadBackground",
    "TimeSource",
    "World",
    "synchronize_with",
    "torch_gpu_uuids",
]
