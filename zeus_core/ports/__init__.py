"""Ports: the outside things the package depends on, each a protocol and its ordinary implementation."""

from zeus_core.ports.background import Background
from zeus_core.ports.device_events import DeviceEvent, DeviceEvents
from zeus_core.ports.time_source import TimeSource
from zeus_core.ports.world import World

__all__ = [
    "Background",
    "DeviceEvent",
    "DeviceEvents",
    "TimeSource",
    "World",
]
