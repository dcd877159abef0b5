"""The bench that the checks share: a GPU, a load for it, and how long they may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from zeus_core.device import Gpu
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.selfcheck._load import Load

_NO_CPUS = CpuDiscovery(cpus=(), unavailable_because="a self-check is of one GPU")
_MAX_RAMP_SECONDS = 2.0  # power follows a load within a second (Ampere and later average over one); twice that


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        quantity: The name of the measured value.
        value: The value; None if it was not measured, for the reason in the note.
        unit: Its unit.
        holds: Whether a promise of the documentation holds here; None where none is made.
        note: More about it, such as the spread.
    """

    quantity: str
    value: float | str | None
    unit: str = ""
    holds: bool | None = None
    note: str = ""


@dataclass
class Bench:
    """The GPU that is checked, and its load.

    Attributes:
        gpu: The GPU.
        make_load: Makes the load. It is made after idle power was measured: a CUDA context raises that.
        is_quick: Whether to take seconds only, for tests.
    """

    gpu: Gpu
    make_load: Callable[[Gpu], Load]
    is_quick: bool = False

    @cached_property
    def load(self) -> Load:
        """The load."""
        return self.make_load(self.gpu)

    @cached_property
    def monitor(self) -> ZeusMonitor:
        """A monitor of this GPU alone."""
        return ZeusMonitor(gpus=[self.gpu], gpu_indices=[0], cpus=_NO_CPUS, synchronize=self._synchronize)

    def seconds(self, usual: float, quick: float) -> float:
        """Return the length of a measurement."""
        return quick if self.is_quick else usual

    def count(self, usual: int, quick: int) -> int:
        """Return a number of repetitions."""
        return quick if self.is_quick else usual

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the GPU busy with training steps, in a thread, and begin once its power has risen."""
        stop, failures = threading.Event(), list[Exception]()
        thread = threading.Thread(target=self._run, args=(stop, failures), name="zeus-core load", daemon=True)
        self.load.step()  # what is made at the first step, such as compiled kernels, is no load
        self.load.synchronize()
        thread.start()
        try:
            time.sleep(self.seconds(_MAX_RAMP_SECONDS, 0.1))
            yield
        finally:
            stop.set()
            thread.join()
        if failures:
            raise failures[0]

    def measure(self, seconds: float) -> Measurement:
        """Measure the GPU for some time, busy or not, without waiting for it."""
        self.monitor.begin_window("selfcheck", sync_execution=False, restart=True)
        time.sleep(seconds)
        return self.monitor.end_window("selfcheck", sync_execution=False)

    def _run(self, stop: threading.Event, failures: list[Exception]) -> None:
        try:
            while not stop.is_set():
                for _ in range(self.load.steps_in_queue):
                    self.load.step()
                self.load.synchronize()
        except Exception as error:
            failures.append(error)

    def _synchronize(self, gpu_indices: object) -> None:
        self.load.synchronize()
