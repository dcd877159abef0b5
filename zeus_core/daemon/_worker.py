"""A thread that makes the calls of one device, one after another."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable

_logger = logging.getLogger(__name__)


class Worker:
    """A thread with a queue of jobs, which the loop fills. A driver that hangs holds up this thread, and no other.

    It is a daemon thread: unlike those of `ThreadPoolExecutor`, it does not keep the process from ending.

    Args:
        name: The name of the thread.
        loop: The loop of the main thread.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        """The name of the thread."""
        self.thread = 0
        """Its identifier, once it runs."""
        self.job_count = 0
        """How many jobs it has done."""
        self.is_ended = False
        """Whether it has done its last job."""
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    @property
    def has_waiting_jobs(self) -> bool:
        """Whether a job has not begun."""
        return not self._jobs.empty()

    def put(self, job: Callable[[], object]) -> None:
        """Do a job soon. It must not raise."""
        self._jobs.put(job)

    def end(self, job: Callable[[], object]) -> asyncio.Future[None]:
        """Do a last job. Those that are put later are not done. Returns a future, which is done once this job is."""
        ended: asyncio.Future[None] = self._loop.create_future()

        def end() -> None:
            job()
            self.is_ended = True
            self._loop.call_soon_threadsafe(ended.set_result, None)

        self.put(end)
        return ended

    def _work(self) -> None:
        """Do the jobs; after a defect of ours, end the daemon: the next one restores the device before it serves."""
        self.thread = threading.get_ident()
        try:
            while not self.is_ended:
                self._jobs.get()()
                self.job_count += 1
        except BaseException:
            if self._loop.is_closed():  # the daemon has ended, and has not waited for this driver
                return
            _logger.exception("the daemon ends, and restores everything when it is started anew")
            os._exit(1)
