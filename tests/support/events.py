"""All classes of events."""

from zeus_core import events

EVENTS: list[type[events.Event]] = [
    kind
    for kind in map(vars(events).get, events.__all__)
    if issubclass(kind, events.Event) and kind is not events.Event
]
