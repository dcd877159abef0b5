"""A block that waits for devices as a hook does."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from zeus_core._process.deadline import HOOK_SECONDS, seconds_left


@contextmanager
def in_hook() -> Iterator[None]:
    seconds_left[get_ident()] = HOOK_SECONDS
    try:
        yield
    finally:
        del seconds_left[get_ident()]
