"""Calls of several devices, close together in time."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from zeus_core._process.lock import ProcessLock

__all__ = ["ParallelCalls"]

_Answer = TypeVar("_Answer")

# Slower calls are made at the same time: handing a call to another thread costs about a quarter of this.
_MAX_QUICK_CALL_SECONDS = 2e-4


class ParallelCalls:
    """Calls functions one after another while they are quick, and at the same time once they have been slow.

    The driver's binding releases the interpreter lock, and real calls take 0.05 to 5 ms each. Threads are started when
    they are first needed, and again in a forked child. They do not keep the process from ending while a driver hangs,
    as those of a ThreadPoolExecutor would.
    """

    def __init__(self) -> None:
        self._is_slow = False
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread_count = 0
        self._process_id: int | None = None
        self._lock = ProcessLock()

    def call(self, functions: Sequence[Callable[[], _Answer]]) -> list[_Answer]:
        """Call all functions, which must not raise, and return their answers."""
        if len(functions) < 2:
            return [function() for function in functions]
        if self._is_slow:
            return self.call_at_once(functions)
        begin = time.perf_counter()
        answers = [function() for function in functions]
        self._is_slow = time.perf_counter() - begin > _MAX_QUICK_CALL_SECONDS * len(functions)
        return answers

    def call_at_once(self, functions: Sequence[Callable[[], _Answer]]) -> list[_Answer]:
        """Call all functions, which must not raise, at the same time, and return their answers."""
        if len(functions) < 2 or not self._has_threads(len(functions) - 1):
            return [function() for function in functions]
        answers: list[Any] = [None] * len(functions)
        done = threading.Semaphore(0)

        def answer(number: int) -> None:
            answers[number] = functions[number]()
            done.release()

        for number in range(1, len(functions)):
            self._tasks.put(lambda number=number: answer(number))  # type: ignore[misc]
        answer(0)
        for _ in functions:
            done.acquire()
        return answers

    def _has_threads(self, count: int) -> bool:
        """Start threads until there are `count`. False while the interpreter is ending: it starts no more threads."""
        with self._lock:
            if self._process_id != os.getpid():
                self._process_id, self._thread_count, self._tasks = os.getpid(), 0, queue.SimpleQueue()
            while self._thread_count < count:
                thread = threading.Thread(target=_work, args=(self._tasks,), name="zeus-core reader", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread_count += 1
            return True


def _work(tasks: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        tasks.get()()
