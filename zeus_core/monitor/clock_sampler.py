"""The mean SM clock of GPUs under load, sampled in the background."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.ports import TimeSource
from zeus_core.ports.background import repeatedly
from zeus_core.process.sampler import weakly

# Often enough to see a short block; a reading takes less than a millisecond. Where clocks are not what is set, they
# only explain what a block has taken, and a tenth of the readings is enough.
_PERIOD_SECONDS, _SELDOM_SECONDS = 0.05, 0.5

# A GPU without work lowers its clock at some time; under load a power limit takes it to 60 % of its highest at the
# lowest (A40 under a third of its power). Samples below this share of the highest one are of a GPU without work.
_LOADED_SHARE = 0.5


class ClockSampler:
    """Samples the SM clocks of some GPUs while it runs.

    Args:
        gpus: The GPUs.
        time_source: The time of the samples.
        is_seldom: Whether to sample twice in a second, in place of twenty times.
    """

    def __init__(self, gpus: Sequence[Gpu], time_source: TimeSource, is_seldom: bool = False) -> None:
        self._gpus = list(gpus)
        self._time_source = time_source
        self._samples_mhz: list[list[int]] = [[] for _ in self._gpus]
        self._stop: weakref.finalize[..., ClockSampler] | None = None
        self._period_seconds = _SELDOM_SECONDS if is_seldom else _PERIOD_SECONDS
        self._is_paused = False

    def start(self) -> None:
        """Begin to sample, if it does not."""
        self._is_paused = False
        if self._stop is None:
            stop = repeatedly(self._time_source, weakly(self.sample), self._period_seconds)
            self._stop = weakref.finalize(self, stop)  # the thread ends with a sampler that is dropped
            self._stop.atexit = False

    def pause(self) -> None:
        """Take no samples until the next `start`. The thread goes on: to start one takes a tenth of a millisecond."""
        self._is_paused = True

    def stop(self) -> None:
        """Stop sampling, and keep the samples."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def take_means_mhz(self) -> tuple[float, ...]:
        """Return the mean clock under load of each GPU with samples, and forget these."""
        samples_of_gpus, self._samples_mhz = self._samples_mhz, [[] for _ in self._gpus]
        return tuple(_loaded_mean(samples) for samples in samples_of_gpus if samples)

    def sample(self) -> None:
        """Read the clocks once, unless paused."""
        if self._is_paused:
            return
        for gpu, samples in zip(self._gpus, self._samples_mhz, strict=True):
            try:
                clock_mhz = gpu.read_sm_clock_mhz()
            except DeviceError:  # the mean is that of the others
                continue
            if clock_mhz > 0:
                samples.append(clock_mhz)


def _loaded_mean(samples_mhz: Sequence[int]) -> float:
    lowest_mhz = _LOADED_SHARE * max(samples_mhz)
    loaded = [clock_mhz for clock_mhz in samples_mhz if clock_mhz >= lowest_mhz]
    return math.fsum(loaded) / len(loaded)
