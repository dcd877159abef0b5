"""The own work of a rank in a step, without its waiting for others."""

from __future__ import annotations

from zeus_core.ports import DeviceEvent


class OwnWork:
    """The parts of a step in which a rank works, between events of its device.

    Args:
        begin: The begin of the first part; None if it could not be noted.
    """

    __slots__ = ("_parts",)

    def __init__(self, begin: DeviceEvent | None) -> None:
        self._parts: list[list[DeviceEvent | None]] = [[begin]]

    def begin(self, event: DeviceEvent | None) -> None:
        """Begin another part. One that has not ended is none."""
        if len(self._parts[-1]) == 1:
            self._parts.pop()
        self._parts.append([event])

    def end(self, event: DeviceEvent | None) -> None:
        """End the latest part, again if it has ended."""
        self._parts[-1][1:] = [event]

    @property
    def seconds(self) -> float | None:
        """How long the parts took; None if none has ended, or an event was lost or not reached."""
        total, ended = 0.0, [part for part in self._parts if len(part) == 2]
        for events in ended:
            begin, end = [None if event is None else event.seconds() for event in events]
            if begin is None or end is None:
                return None
            total += end - begin
        return total if ended else None
