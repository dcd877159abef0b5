"""A thread that makes the calls of one device, one after another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

_logger = logging.getLogger(__name__)


class Worker:
    """A thread with a loop: its queue of jobs, and the connections that ask for its device.

    A driver that hangs holds up this thread, and no other. It is a daemon thread: unlike those of `ThreadPoolExecutor`,
    it does not keep the process from ending.

    Args:
        name: The name of the thread.
        main: The loop of the main thread.
    """

    def __init__(self, name: str, main: asyncio.AbstractEventLoop) -> None:
        self.name = name
        """The name of the thread."""
        self.loop = asyncio.new_event_loop()
        """Its loop."""
        self.thread = 0
        """Its identifier, once it runs."""
        self.job_count = 0
        """How many jobs it has done."""
        self.is_ended = False
        """Whether it has done its last job."""
        self._main = main
        self.loop.set_exception_handler(end_after_defect)
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, job: Callable[[], object]) -> None:
        """Do a job soon, asked by any thread. It must not raise."""
        self.loop.call_soon_threadsafe(self._do, job)

    def end(self, job: Callable[[], object]) -> asyncio.Future[None]:
        """Do a last job. Those that are put later are not done. Returns a future, which is done once this job is."""
        ended: asyncio.Future[None] = self._main.create_future()

        def end() -> None:
            job()
            self.is_ended = True
            self.loop.stop()
            with contextlib.suppress(RuntimeError):  # the daemon has ended, and has not waited for this driver
                self._main.call_soon_threadsafe(ended.set_result, None)

        self.put(end)
        return ended

    def _do(self, job: Callable[[], object]) -> None:
        if not self.is_ended:
            job()
            self.job_count += 1

    def _work(self) -> None:
        self.thread = threading.get_ident()
        self.loop.run_forever()


def end_after_defect(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the daemon after a defect of ours in a loop: the next one restores each device before it serves."""
    _logger.error("the daemon ends, %s", context["message"], exc_info=context.get("exception"))
    os._exit(1)
