"""Calls of several devices: close together in time, and without waiting for a driver that hangs."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from zeus_core.errors import DriverFaultError
from zeus_core.process.deadline import Patience, no_answer, unanswered, waiting_for
from zeus_core.process.lock import ProcessLock, process_id

_Answer = TypeVar("_Answer")

# Slower calls are made at the same time: handing a call to another thread costs about a quarter of this.
_MAX_QUICK_CALL_SECONDS = 2e-4
# A device that was late is trusted again once it answers within this: ten times what a reading takes at most.
_PROBATION_SECONDS = 0.05


class DeviceCall(Generic[_Answer]):
    """A call of a device that is made in its thread."""

    def __init__(self, function: Callable[[], _Answer]) -> None:
        self._function = function
        self._answer: Any = None
        self._error: BaseException | None = None
        self.is_done: bool = False
        """Whether the device has answered."""
        self.has_begun: bool = False
        """Whether its thread has come to it."""
        self.seconds: float = 0.0
        """How long the device took to answer."""
        self._running = threading.Lock()
        self._running.acquire()

    def make(self) -> None:
        """Call the function. Never raises."""
        self.has_begun = True
        begin = time.perf_counter()
        try:
            self._answer = self._function()
        except BaseException as error:
            self._error = error
        finally:
            self.seconds = time.perf_counter() - begin
            self.is_done = True
            self._running.release()

    def wait(self, patience: Patience, until_seconds: float = math.inf) -> bool:
        """Wait for the answer; see `Patience.acquire`. Returns whether it is there."""
        if not patience.acquire(self._running, until_seconds):
            unanswered.add(self._running)
            return False
        self._running.release()
        return True

    def finish(self) -> None:
        """Wait for the answer, however long it takes."""
        with self._running:
            pass

    def answer(self) -> _Answer:
        """Return the answer, or raise the error of the function, once it `is_done`."""
        if self._error is not None:
            raise self._error
        return cast(_Answer, self._answer)


class _DeviceThread:
    """The thread of one device, and what is known of its driver."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[DeviceCall[Any] | None] = queue.SimpleQueue()
        self.late: DeviceCall[Any] | None = None  # the call that was not waited for any longer
        self.thread = threading.Thread(target=_work, args=(self.calls,), name="zeus-core device", daemon=True)
        self.thread.start()

    def put(self, function: Callable[[], _Answer]) -> DeviceCall[_Answer]:
        call = DeviceCall(function)
        if threading.current_thread() is self.thread:  # as when an object is finalized here: it cannot wait for itself
            call.make()
        else:
            self.calls.put(call)
        return call


class ParallelCalls:
    """A thread for each of several devices, numbered from 0.

    The driver's binding releases the interpreter lock, and real calls take 0.05 to 5 ms each. Threads are started when
    they are first needed, and again in a forked child. They end with this object, and keep no process from ending while
    a driver hangs, as those of a ThreadPoolExecutor would.

    A call that is not answered in time is given up, and its answer is lost. While it lasts, other calls of that device
    fail at once. Then the device is on probation: it is waited for as long as before only when it has answered quickly.
    So a driver that hangs costs its caller one deadline, and one that always answers late almost nothing. All calls of
    a hook share one deadline: see `Patience`.
    """

    def __init__(self) -> None:
        self._is_slow = False
        self._threads: list[_DeviceThread] = []
        self._process_id: int | None = None
        self._lock = ProcessLock()
        weakref.finalize(self, _end, self._threads).atexit = False

    def call(self, functions: Sequence[Callable[[], _Answer]]) -> list[_Answer]:
        """Call a function of each device, one after another while they are quick, and else at the same time.

        The functions must not raise. They are waited for without a deadline.
        """
        if len(functions) < 2:
            return [function() for function in functions]
        if self._is_slow:
            return self.call_at_once(functions)
        begin = time.perf_counter()
        answers = [function() for function in functions]
        self._is_slow = time.perf_counter() - begin > _MAX_QUICK_CALL_SECONDS * len(functions)
        return answers

    def call_at_once(self, functions: Sequence[Callable[[], _Answer]]) -> list[_Answer]:
        """Call a function of each device at the same time. See `call`."""
        if len(functions) < 2 or not self.start(len(functions)):
            return [function() for function in functions]
        first = DeviceCall(functions[0])
        calls = [first, *(self._threads[number].put(function) for number, function in enumerate(functions) if number)]
        first.make()
        for call in calls:
            call.finish()
        self._note_seconds(calls)
        return [call.answer() for call in calls]

    def call_within(
        self, seconds: float, functions: Sequence[Callable[[], _Answer]], late: Callable[[int, str], _Answer]
    ) -> list[_Answer]:
        """Call a function of each device at the same time, and wait no longer than a deadline.

        Args:
            seconds: The deadline.
            functions: The functions, which must not raise.
            late: Makes the answer of a device that has not answered, from its number and the reason.
        """
        return self.begin_within(seconds, functions, late)()

    def begin_within(
        self, seconds: float, functions: Sequence[Callable[[], _Answer]], late: Callable[[int, str], _Answer]
    ) -> Callable[[], list[_Answer]]:
        """Begin what `call_within` does; the function that is returned waits for the answers, and is called once."""
        with waiting_for("device"):
            calls = [self._begin(number, function) for number, function in enumerate(functions)]

        def answers() -> list[_Answer]:
            with waiting_for("device"):
                patience = Patience(seconds)
                answers = [
                    call.answer()
                    if call is not None and self._is_in_time(number, call, patience)
                    else late(number, no_answer(seconds))
                    for number, call in enumerate(calls)
                ]
            self._note_seconds([call for call in calls if call is not None and call.is_done])
            return answers

        return answers

    def call_one_within(self, seconds: float, number: int, function: Callable[[], _Answer]) -> _Answer:
        """Call a function of one device, and wait no longer than a deadline.

        Raises:
            DriverFaultError: There is no answer yet. The call goes on.
            Exception: The function raised it.
        """
        with waiting_for("device"):
            patience = Patience(seconds)
            call = self._begin(number, function)
            if call is None or not self._is_in_time(number, call, patience):
                raise DriverFaultError(no_answer(seconds))
        return call.answer()

    def is_occupied(self, number: int) -> bool:
        """Return whether a call of one device that was not waited for has still no answer."""
        late = self._threads[number].late if self.start(number + 1) else None
        return late is not None and not late.is_done

    def put(self, number: int, function: Callable[[], _Answer]) -> DeviceCall[_Answer]:
        """Call a function of one device once all earlier calls of it are done, however long they take."""
        if self.start(number + 1):
            return self._threads[number].put(function)
        call = DeviceCall(function)
        call.make()
        return call

    def start(self, count: int) -> bool:
        """Start threads until there are `count`. False while the interpreter is ending: it starts no more threads.

        No lock is taken where they are running, as signal handlers call this at any moment.
        """
        if self._process_id == process_id() and len(self._threads) >= count:
            return True
        with self._lock:
            if self._process_id != process_id():
                self._threads.clear()
                self._process_id = process_id()
            try:
                while len(self._threads) < count:
                    self._threads.append(_DeviceThread())
            except RuntimeError:
                return False
            return True

    def _note_seconds(self, calls: Sequence[DeviceCall[Any]]) -> None:
        """Note whether calls take long: apart from the time that the threads take."""
        self._is_slow = sum(call.seconds for call in calls) > _MAX_QUICK_CALL_SECONDS * len(calls)

    def _begin(self, number: int, function: Callable[[], _Answer]) -> DeviceCall[_Answer] | None:
        """Call a function in the thread of its device, unless a late call still occupies it."""
        return None if self.is_occupied(number) else self.put(number, function)

    def _is_in_time(self, number: int, call: DeviceCall[Any], patience: Patience) -> bool:
        if number >= len(self._threads):  # no thread could be started, and the call was made here
            return True
        thread = self._threads[number]
        if thread.late is not None and not thread.late.is_done:
            return False  # it was begun before that one was late, and comes after it
        if call.wait(patience, math.inf if thread.late is None else _PROBATION_SECONDS):
            thread.late = None
            return True
        thread.late = call
        return False


def _work(calls: queue.SimpleQueue[DeviceCall[Any] | None]) -> None:
    with suppress(AttributeError, OSError):  # Linux alone; a container may forbid it
        # On a machine that is busy, a thread that is woken takes the place of the one that has woken it: training would
        # wait for its next turn, 4 ms on average, at each call that it does not wait for.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    while True:
        call = calls.get()
        if call is None:
            return
        call.make()
        del call  # its function may refer to the owner of this thread


def _end(threads: list[_DeviceThread]) -> None:
    for thread in threads:
        thread.calls.put(None)
