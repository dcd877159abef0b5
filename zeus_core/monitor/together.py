"""Calling several devices close together in time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["Together"]

_Answer = TypeVar("_Answer")

_SLOW_CALL_SECONDS = 2e-4  # handing a call to another thread costs about a quarter of this
_MOST_THREADS = 16


class Together:
    """Calls functions one after another while they are quick, and at the same time once they turn out slow.

    The driver's binding releases the interpreter lock, and real calls take 0.05 to 5 ms each. The threads are made
    when they are needed first, and anew in a forked child.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._process_id: int | None = None
        self._is_slow = False

    def call(self, functions: Sequence[Callable[[], _Answer]]) -> list[_Answer]:
        """The answers of all functions, which must not raise."""
        if len(functions) == 1:
            return [functions[0]()]
        if not self._is_slow or not functions:
            begin = time.perf_counter()
            answers = [function() for function in functions]
            self._is_slow = time.perf_counter() - begin > _SLOW_CALL_SECONDS * len(functions)
            return answers
        futures = [self._threads().submit(function) for function in functions[1:]]
        return [functions[0](), *(future.result() for future in futures)]

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process_id != os.getpid():
            self._process_id = os.getpid()
            self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="zeus-core reader")
        return self._pool
