"""All classes of events."""

from zeus_core import events

EVENTS: list[type[events.Event]] = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
]
assert EVENTS
