"""Hooks, as they wait for devices."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from zeus_core.process import deadline


@contextmanager
def in_hook() -> Iterator[None]:
    """Wait for devices in a block as a hook does."""
    deadline.seconds_left[get_ident()] = deadline.HOOK_SECONDS
    try:
        yield
    finally:
        del deadline.seconds_left[get_ident()]


class Waits(dict[int, float]):
    """Notes how long each hook has waited, in seconds that it has asked for: they are the same on a busy machine."""

    def __init__(self) -> None:
        self.of_hooks: list[float] = [0.0]

    def pop(self, thread, default=None):
        left = super().pop(thread, default)
        if left is not None:
            self.of_hooks.append(deadline.HOOK_SECONDS - left)
        return left


def recorded_waits() -> Waits:
    """Return what will be noted of all hooks of this process, which has imported nothing else of zeus_core yet."""
    deadline.seconds_left = Waits()
    return deadline.seconds_left


def be_patient(seconds: float = 30.0) -> None:
    """Let the hooks of this process wait so long for a driver that works.

    On a busy machine a thread can wait for a core for longer than the second that they have.
    """
    for module in [module for name, module in sys.modules.items() if name.startswith("zeus_core.")]:
        for constant in {"CALL_SECONDS", "HOOK_SECONDS"} & vars(module).keys():
            setattr(module, constant, seconds)
