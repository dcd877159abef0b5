"""All that a monitor measures, read as one and turned into a `Measurement`."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TypeVar

from zeus_core.device import Gpu
from zeus_core.device.cpu import Cpu
from zeus_core.device.gpu import machine_name, uuid_in_job
from zeus_core.errors import DeviceError, DriverFaultError
from zeus_core.measurement import Device, Measurement
from zeus_core.monitor.counted_energy import rapl_energy
from zeus_core.monitor.meter import Meter, make_meter
from zeus_core.monitor.reading import CpuEdge, CpuMeter, GpuEdge, Reading
from zeus_core.ports import TimeSource
from zeus_core.ports.background import repeatedly
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.process.deadline import CALL_SECONDS, SET_UP_SECONDS, is_in_hook, outside_of_hooks
from zeus_core.process.parallel import ParallelCalls
from zeus_core.process.sampler import Sampler, weakly

_Answer = TypeVar("_Answer")

_PRECISE_PERIOD_SECONDS = 0.004  # trades CPU time (3 to 10 % of a core) for knowing when a counter was updated
_SAMPLING_PERIOD_SECONDS = 0.05  # trades CPU time for power changes that are seen late, without a counter
_WATCHING_PERIOD_SECONDS = 0.1  # of counters, which may stop: the usual time between two updates
_KEEPING_PERIOD_SECONDS = 30.0  # of CPU counters between any readings: one of 65 kJ wraps around in 33 s at 2,000 W
_LOOK_PERIODS = 1.1  # of a counter, and its updates come with a jitter


class Instruments:
    """The meters of some GPUs and CPU packages.

    Args:
        gpus: By index.
        cpus: By index.
        time_source: Times the readings.
        precise: Sample the GPUs all the time, to know when their counters are updated.

    Raises:
        UsageError: `precise`, with a GPU that cannot be sampled so.
    """

    def __init__(
        self, gpus: Mapping[int, Gpu], cpus: Mapping[int, Cpu], time_source: TimeSource, precise: bool
    ) -> None:
        self._time_source = time_source
        self._gpus = list(gpus.values())
        self._cpus = list(cpus.values())
        self._cpu_meters = [CpuMeter(cpu, time_source) for cpu in self._cpus]
        self._keeping_process = 0  # a forked process has none of its parent's threads
        self._together = ParallelCalls()
        with outside_of_hooks():
            self._meters = self._make_meters(self._gpus, precise)
            self._read_gpus = [meter.read for meter in self._meters]
            self._energy_between = [meter.between for meter in self._meters]
            # Shows whether calls are slow, before it matters.
            self._together.call_within(SET_UP_SECONDS, self._read_gpus, self._missed)
        self.peak_watts = tuple(meter.peak_watts for meter in self._meters)
        """The most that each GPU can draw."""
        packages = [Device("cpu", index, f"{machine_name()}/{index}") for index in cpus]
        self.devices = (
            *(Device("gpu", index, uuid_in_job(gpu)) for index, gpu in gpus.items()),
            *packages,
            *(package._replace(kind="dram") for package in packages if cpus[package.index].has_dram),
        )
        """All measured devices, in the order of a measurement."""
        self._samples_always = self._is_open = precise
        self._was_used = False
        is_sampled = any(meter.needs_sampling for meter in self._meters)
        usual_seconds = _SAMPLING_PERIOD_SECONDS if is_sampled else _WATCHING_PERIOD_SECONDS
        period_seconds = _PRECISE_PERIOD_SECONDS if precise else usual_seconds
        # A thread would watch counters in virtual time at moments that differ between runs, which nobody could repeat.
        self._is_watched = is_sampled or isinstance(time_source, MonotonicTime)
        self._sample_gpus = _sampling(self._read_gpus, has_deadline=not precise)
        self._samples = itertools.count()
        self._samples_per_cpu_read = round(_WATCHING_PERIOD_SECONDS / period_seconds)
        self._sampler = Sampler(weakly(self._sample), period_seconds, _uneven_wait())
        weakref.finalize(self, self._sampler.stop)
        if precise:
            self._sampler.start()

    def _make_meters(self, gpus: list[Gpu], precise: bool) -> list[Meter]:
        """Make all meters at the same time, because each looks at its GPU for a moment."""

        def attempt(gpu: Gpu) -> Meter | Exception:
            try:
                return make_meter(gpu, self._time_source, precise)
            except Exception as error:
                return error

        attempts = [partial(attempt, gpu) for gpu in gpus]
        made = self._together.call_within(SET_UP_SECONDS, attempts, lambda _, reason: DriverFaultError(reason))
        meters: list[Meter] = []
        for gpu, meter in zip(gpus, made, strict=True):
            if isinstance(meter, DriverFaultError):
                raise DriverFaultError(f"{gpu.name} ({gpu.uuid}) cannot be measured: {meter}")
            if isinstance(meter, Exception):
                raise meter
            meters.append(meter)
        return meters

    def read(self) -> Reading:
        """Read all devices, close together. Never raises."""
        if is_in_hook():
            return self._begin_reading()()
        at = self._time_source.now()
        return Reading(at, self._together.call(self._read_gpus), self._read_cpus())

    def begin_reading(self) -> Callable[[], Reading]:
        """Begin to read all devices. The function that is returned waits for the reading, if it is called in a hook.

        A hook is not held up by a driver then, nor by a machine so busy that another thread gets no turn. Other callers
        wait for the driver at once. So do hooks in virtual time, which may go on before another thread has come to it.
        """
        if is_in_hook() and isinstance(self._time_source, MonotonicTime):
            return cache(self._begin_reading())
        reading = self.read()
        return lambda: reading

    def _begin_reading(self) -> Callable[[], Reading]:
        """Begin to read the GPUs beside this thread: one that has not answered when that was waited for is a fault."""
        at = self._time_source.now()
        gpus = self._together.begin_within(CALL_SECONDS, self._read_gpus, partial(self._missed, at=at))
        cpus = self._read_cpus()
        return lambda: Reading(at, gpus(), cpus)

    def _missed(self, number: int, reason: str, at: float | None = None) -> GpuEdge:
        return self._meters[number].miss(self._time_source.now() if at is None else at, reason)

    def _read_cpus(self) -> list[CpuEdge]:
        if self._cpus and self._keeping_process != os.getpid():
            self._keeping_process = os.getpid()
            stop = repeatedly(self._time_source, partial(_keep, self._cpus), _KEEPING_PERIOD_SECONDS)
            weakref.finalize(self, stop)
        return [meter.read() for meter in self._cpu_meters]

    def ask(self, question: Callable[[Gpu], _Answer], late: _Answer) -> list[_Answer]:
        """Ask each GPU something, in the thread that reads it in hooks. The question must not raise.

        Args:
            question: Asks a GPU.
            late: The answer of one that has not answered in time.
        """
        questions = [partial(question, gpu) for gpu in self._gpus]
        return self._together.call_within(CALL_SECONDS, questions, lambda _number, _reason: late)

    def between(self, begin: Reading, end: Reading) -> Measurement:
        """Compute what was measured from one reading to another."""
        seconds = end.at - begin.at
        edges_of_gpus = zip(self._energy_between, begin.gpus, end.gpus, strict=True)
        energies = [energy_between(first, last, seconds) for energy_between, first, last in edges_of_gpus]
        if self._cpus:
            periods = [meter.period_seconds for meter in self._cpu_meters]
            pairs = [(first, last, first.fault or last.fault) for first, last in zip(begin.cpus, end.cpus, strict=True)]
            energies += [
                rapl_energy(first.package, last.package, fault, seconds, period)
                for (first, last, fault), period in zip(pairs, periods, strict=True)
            ]
            energies += [
                rapl_energy(first.dram, last.dram, fault, seconds, period)
                for cpu, (first, last, fault), period in zip(self._cpus, pairs, periods, strict=True)
                if cpu.has_dram
            ]
        return Measurement(seconds, dict(zip(self.devices, energies, strict=True)))

    def read_last(self) -> Reading:
        """Read all devices at the end of a window. Never raises.

        A counter that may have stopped within it is looked at once more: one that works is updated within a period.
        """
        reading = self.read()
        for edge in reading.gpus:
            if edge.update is not None and edge.update.doubtful_since is not None and not is_in_hook():
                most_seconds = max(gpu.energy_counter_period_seconds for gpu in self._gpus)
                self._time_source.sleep(_LOOK_PERIODS * most_seconds)
                self.read()
                break
        return reading

    def begin_sampling(self) -> None:
        """Begin sampling: a window has been opened."""
        self._is_open = self._was_used = True
        if self._is_watched and not self._sampler.is_running:
            self._sampler.start()

    def end_sampling(self) -> None:
        """End sampling, unless a window is opened soon: the last one was closed."""
        self._is_open = self._samples_always

    def _sample(self) -> None:
        if not (self._is_open or self._was_used):
            self._sampler.stop()
            if self._was_used:  # by another thread, meanwhile
                self._sampler.start()
            return
        self._was_used = False
        with suppress(Exception):  # readings that somebody waits for raise it, and are what reports it
            self._sample_gpus()
        if next(self._samples) % self._samples_per_cpu_read == 0:
            for meter in self._cpu_meters:
                meter.read()


def _keep(cpus: Sequence[Cpu]) -> None:
    """Read counters often enough that no wrap-around is missed, also where no window is open."""
    for cpu in cpus:
        with suppress(DeviceError):  # the next reading reports it
            cpu.read_energy_counters_joules()


def _sampling(reads: list[Callable[[], GpuEdge]], has_deadline: bool) -> Callable[[], object]:
    """Return a function that takes one sample of each GPU.

    Args:
        reads: Read one GPU each.
        has_deadline: Whether a GPU that hangs keeps the others from being sampled no longer than a deadline. It costs
            two switches of threads a sample, too much for one every 4 ms; with a counter, samples may be missed.
    """
    calls = ParallelCalls()
    if not has_deadline:
        return partial(calls.call, reads)
    return partial(calls.call_within, CALL_SECONDS, reads, lambda _, reason: None)


def _uneven_wait() -> Callable[[threading.Event, float], object]:
    """Return a wait of half to one and a half times as long: a load in step with the samples would show one side only.

    It has a source of chance of its own: that of the program is the program's.
    """
    import random  # 1 ms, and most GPUs have a counter

    chance = random.Random()
    return lambda event, seconds: event.wait(seconds * chance.uniform(0.5, 1.5))
