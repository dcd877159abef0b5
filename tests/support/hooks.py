"""A block that waits for devices as a hook does."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from zeus_core._process.deadline import threads_in_hook


@contextmanager
def in_hook() -> Iterator[None]:
    threads_in_hook.add(get_ident())
    try:
        yield
    finally:
        threads_in_hook.discard(get_ident())
