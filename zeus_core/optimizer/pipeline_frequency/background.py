"""The background port: what is done beside training, never on its thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from zeus_core.monitor.sampler import Sampler
from zeus_core.optimizer.pipeline_frequency.child_process import run_in_child

__all__ = ["Background", "ThreadBackground"]

_Result = TypeVar("_Result")


class Background(Protocol):
    """Does things beside training. What it is given must not raise."""

    def soon(self, action: Callable[[], object]) -> None:
        """Do something as soon as everything that was given before is done. Returns at once."""
        ...

    def repeatedly(self, action: Callable[[], object], period_seconds: float) -> Callable[[], None]:
        """Do something every so many seconds, until what is returned is called."""
        ...

    def run_in_child(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """What a function of a module returns; to be called in the background. What it raises is passed on."""
        ...


class ThreadBackground:
    """Threads that die with the process: one for what comes soon, one for each repeated action."""

    def __init__(self) -> None:
        self._actions: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def soon(self, action: Callable[[], object]) -> None:
        """Do something as soon as everything that was given before is done."""
        self._actions.put(action)
        if self._thread is None or not self._thread.is_alive():  # as in a forked child
            self._thread = threading.Thread(target=self._run, name="zeus-core background", daemon=True)
            self._thread.start()

    def repeatedly(self, action: Callable[[], object], period_seconds: float) -> Callable[[], None]:
        """Do something every so many seconds, until what is returned is called."""
        sampler = Sampler(action, period_seconds)
        sampler.start()
        return sampler.stop

    def run_in_child(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """What a function returns, computed in a process of its own."""
        return run_in_child(function, *arguments)

    def _run(self) -> None:
        while True:
            self._actions.get()()
