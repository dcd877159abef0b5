"""All that a monitor measures, read as one and turned into a `Measurement`."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from zeus_core._process.parallel import ParallelCalls
from zeus_core._process.sampler import Sampler
from zeus_core.device import Cpu, Gpu
from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement, Method
from zeus_core.monitor._alignment import align
from zeus_core.monitor._counted_energy import DeviceEnergy
from zeus_core.monitor._cpu_energy import CpuReading, dram_between, package_between, read_cpu
from zeus_core.monitor._edge import Edge
from zeus_core.monitor._meter import Meter, make_meter
from zeus_core.ports import TimeSource

__all__ = ["Instruments", "Reading"]

_PRECISE_PERIOD_SECONDS = 0.004
_SAMPLING_PERIOD_SECONDS = 0.05


class Reading(NamedTuple):
    """What all devices of a monitor said at one moment."""

    at: float
    gpus: list[Edge]
    cpus: list[CpuReading]

    @property
    def has_fault(self) -> bool:
        """Whether a GPU could not be read."""
        return any(edge.fault is not None for edge in self.gpus)


class Instruments:
    """The meters of some GPUs and CPU packages.

    Args:
        gpus: By index.
        cpus: By index.
        time_source: Times the readings.
        precise: Sample the GPUs all the time, to know when their counters step.

    Raises:
        UsageError: `precise`, with a GPU that cannot be sampled so.
    """

    def __init__(
        self, gpus: Mapping[int, Gpu], cpus: Mapping[int, Cpu], time_source: TimeSource, precise: bool
    ) -> None:
        self._time_source = time_source
        self._cpus = cpus
        self._together = ParallelCalls()
        self._aligning = ParallelCalls()
        self._meters = self._make_meters(gpus, precise)
        self._read_gpus = [meter.read for meter in self._meters.values()]
        self._together.call(self._read_gpus)  # tells whether calls are slow, before it matters
        self._samples_always = precise
        sampled = [meter.read for meter in self._meters.values() if meter.needs_sampling]
        period_seconds = _PRECISE_PERIOD_SECONDS if precise else _SAMPLING_PERIOD_SECONDS
        sampling = ParallelCalls()
        self._sampler = Sampler(lambda: sampling.call(sampled), period_seconds) if sampled else None
        if self._sampler is not None:
            weakref.finalize(self, self._sampler.stop)
            if precise:
                self._sampler.start()

    def _make_meters(self, gpus: Mapping[int, Gpu], precise: bool) -> dict[int, Meter]:
        """At the same time, for each looks at its GPU for a moment."""

        def attempt(gpu: Gpu) -> Meter | UsageError:
            try:
                return make_meter(gpu, self._time_source, precise)
            except UsageError as error:
                return error

        meters: dict[int, Meter] = {}
        attempts = self._together.call_at_once([partial(attempt, gpu) for gpu in gpus.values()])
        for index, meter in zip(gpus, attempts, strict=True):
            if isinstance(meter, UsageError):
                raise meter
            meters[index] = meter
        return meters

    def read(self) -> Reading:
        """Read all devices, close together. Never raises."""
        at = self._time_source.now()
        gpus = self._together.call(self._read_gpus)
        return Reading(at, gpus, [read_cpu(cpu) for cpu in self._cpus.values()] if self._cpus else [])

    def align(self, reading: Reading) -> None:
        """Watch the GPUs for a moment after a reading, in the background, and complete the reading by that."""
        watching = threading.Thread(
            target=align,
            args=(reading.gpus, list(self._meters.values()), self._aligning),
            name="zeus-core aligner",
            daemon=True,
        )
        with contextlib.suppress(RuntimeError):  # no thread can be made while the interpreter is ending
            watching.start()

    def begin_sampling(self) -> None:
        """A window is about to be opened."""
        if self._sampler is not None:
            self._sampler.start()

    def end_sampling(self) -> None:
        """The last window was closed."""
        if self._sampler is not None and not self._samples_always:
            self._sampler.stop()

    def between(self, begin: Reading, end: Reading) -> Measurement:
        """What was measured from one edge to another."""
        seconds = end.at - begin.at
        gpus = _Figures("GPU")
        for (index, meter), first, second in zip(self._meters.items(), begin.gpus, end.gpus, strict=True):
            gpus.add(index, meter.between(first, second))
        if not self._cpus:
            return Measurement(
                seconds,
                gpu_energy=gpus.energies,
                gpu_method=gpus.methods,
                gpu_uncertainty_joules=gpus.uncertainties,
                lost_because=gpus.reasons,
            )
        packages, drams = _Figures("CPU"), _Figures("DRAM")
        for (index, cpu), first_cpu, second_cpu in zip(self._cpus.items(), begin.cpus, end.cpus, strict=True):
            packages.add(index, package_between(first_cpu, second_cpu, seconds))
            if cpu.has_dram:
                drams.add(index, dram_between(first_cpu, second_cpu, seconds))
        return Measurement(
            seconds,
            gpu_energy=gpus.energies,
            cpu_energy=packages.energies,
            dram_energy=drams.energies or None,
            gpu_method=gpus.methods,
            gpu_uncertainty_joules=gpus.uncertainties,
            cpu_method=packages.methods,
            cpu_uncertainty_joules=packages.uncertainties,
            dram_method=drams.methods or None,
            dram_uncertainty_joules=drams.uncertainties or None,
            lost_because={**gpus.reasons, **packages.reasons, **drams.reasons},
        )


class _Figures:
    """The energies of one kind of device, as the fields of a `Measurement`."""

    __slots__ = ("_kind", "energies", "methods", "reasons", "uncertainties")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.energies: dict[int, float | None] = {}
        self.methods: dict[int, Method] = {}
        self.uncertainties: dict[int, float | None] = {}
        self.reasons: dict[str, str] = {}

    def add(self, index: int, energy: DeviceEnergy) -> None:
        """Take in the energy of one device."""
        self.energies[index], self.methods[index], self.uncertainties[index], reason = energy
        if reason is not None:
            self.reasons[f"{self._kind} {index}"] = reason
