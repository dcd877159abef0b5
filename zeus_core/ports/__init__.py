"""Ports: the outside things the package depends on, each a protocol and its ordinary implementation."""

from zeus_core.ports._background import Background
from zeus_core.ports._device_events import DeviceEvent, DeviceEvents
from zeus_core.ports._time_source import TimeSource
from zeus_core.ports._world import World

__all__ = [
    "Background",
    "DeviceEvent",
    "DeviceEvents",
    "TimeSource",
    "World",
]
