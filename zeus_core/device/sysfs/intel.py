"""Intel's discrete GPUs through the files of i915 and xe (ABI/testing/sysfs-driver-intel-i915-hwmon, -xe-hwmon).

The energy is in a register of 32 bits in units of 2^-14 J, which wraps around in 4.4 min at 1 kW. The driver adds it up
when it is read, and only then (`hwm_energy` in i915_hwmon.c): it is read each minute. There is no power sensor.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress

from zeus_core._sysfs import Card, find_cards, sysfs_root
from zeus_core.device.gpu import Gpu, PowerRange
from zeus_core.device.sysfs.sysfs_gpu import PERIOD_SECONDS, SysfsGpu
from zeus_core.device.visible import in_order, visible_places
from zeus_core.errors import DeviceError, DriverFaultError, NoDeviceError, NotSupportedError
from zeus_core.ports.accelerator import FrameworkGpu
from zeus_core.ports.time_source import MonotonicTime, TimeSource
from zeus_core.process.lock import ProcessLock
from zeus_core.process.sampler import Sampler, weakly
from zeus_core.units import joules_from_microjoules

_logger = logging.getLogger(__name__)

_REGISTER_JOULES = 2.0**32 / 2**14
_MOST_WATTS = 1000.0  # more than any of these boards draws (Max 1550: 600 W)
_MOST_OF_LIMIT = 2.0  # limits hold over seconds; above them are PL2 and what the slot supplies (LACT#535; judgement)
# The clock of the first tile, in the folder of the device.
_CLOCKS = {"xe": "tile0/gt0/freq0/act_freq", "i915": "drm/{}/gt_act_freq_mhz"}
_KEEPER_SECONDS = 60.0
# The power is a mean over so long, or twice as long; over more, it is not that of the moment, and is waited for.
_MEAN_SECONDS = 0.5
_STALE_SECONDS = 2.0
_LOOKS = 3  # at first, a period apart, of which one may show no move; later one, which holds up less


class IntelGpu(SysfsGpu):
    """A GPU of Intel. Its power is the difference of its energy over the latest second or half.

    Args:
        card: Its files.
        time_source: Times the readings; real time by default.
    """

    def __init__(self, card: Card, time_source: TimeSource | None = None) -> None:
        super().__init__(card, f"Intel GPU {card.text('device') or card.uuid}")
        if not self._has_power_file:
            self.power_average_seconds: float = 2 * _MEAN_SECONDS
        self._time_source = time_source or MonotonicTime()
        self._lock = ProcessLock()
        self._last: tuple[float, float] | None = None  # when the file was read, and its joules
        self._wrapped_joules = 0.0
        self._marks: list[tuple[float, float]] = []  # two readings, half a second apart
        self._highest_seen_watts = 0.0
        self._keeper = Sampler(weakly(self._count), _KEEPER_SECONDS, name="zeus-core Intel GPU")
        weakref.finalize(self, self._keeper.stop)

    def read_energy_counter_joules(self) -> float:
        """Read `energy1_input`, or that of the package where there is none of the card."""
        with self._lock:  # readings of several threads must come in the order of time
            return self._read()[1]

    def _read(self) -> tuple[float, float]:
        at = self._time_source.now()
        joules = joules_from_microjoules(self._card.read_number(self._card.hwmon("energy1_input")))
        last_at, last_joules = self._last or (at, joules)
        self._last = at, joules
        # Where the register itself is shown, it falls as it wraps around; any other fall is a driver that was reloaded.
        wrapped_joules = joules - last_joules + _REGISTER_JOULES
        if joules < last_joules < _REGISTER_JOULES and wrapped_joules <= _MOST_WATTS * (at - last_at + PERIOD_SECONDS):
            self._wrapped_joules += _REGISTER_JOULES
        mark = at, joules + self._wrapped_joules
        if not self._marks or at - self._marks[-1][0] >= _MEAN_SECONDS:
            self._marks = [*self._marks[-1:], mark]
        if not self._keeper.is_running:
            self._keeper.start()
        return mark

    def _count(self) -> None:
        with suppress(DeviceError):
            self.read_energy_counter_joules()

    def read_power_watts(self) -> float:
        """Read `power1_input`; without it, as in all kernels so far, the energy of some moments over their time."""
        if self._has_power_file:
            return super().read_power_watts()
        with self._lock:
            at, joules = self._read()
            marks = [mark for mark in self._marks if PERIOD_SECONDS <= at - mark[0] <= _STALE_SECONDS]
            begin, begin_joules = marks[0] if marks else (at, joules)
            is_first = len(self._marks) == 1
            for _ in range(0 if marks else _LOOKS if is_first else 1):
                self._time_source.sleep(PERIOD_SECONDS)
                at, joules = self._read()
        if joules <= begin_joules:
            raise DriverFaultError(
                f"the energy counter of {self.name} ({self.uuid}) has not moved for {at - begin:g} s"
            )
        return (joules - begin_joules) / (at - begin)

    @property
    def peak_watts(self) -> float:  # type: ignore[override]  # it follows a range that moves
        """The most that the board can draw for a moment."""
        try:
            return min(_MOST_OF_LIMIT * self.read_power_limit_range_watts().highest_watts, _MOST_WATTS)
        except DeviceError:
            return _MOST_WATTS

    def read_sm_clock_mhz(self) -> int:
        """Read the clock of the first tile, which is 0 while it sleeps."""
        return self._card.read_number(_CLOCKS[self.driver].format(self._card.name))

    def read_default_power_limit_watts(self) -> float:
        """Read the power that the board is rated for; the highest limit seen where the driver does not tell it."""
        with suppress(NotSupportedError):
            if rated_watts := self._card.read_default_power_limit_watts():
                return rated_watts
        return self.read_power_limit_range_watts().highest_watts

    def read_power_limit_range_watts(self) -> PowerRange:
        """Return half of the rated power to the rated power (judgement, 2026-11-27): the driver shows no lowest limit.

        The limit that was found may be higher than what the driver rates, and is all there is where it rates nothing.
        """
        with suppress(NotSupportedError):
            self._highest_seen_watts = max(self._highest_seen_watts, self.read_power_limit_watts())
        rated_watts = 0.0
        with suppress(NotSupportedError):
            rated_watts = self._card.read_default_power_limit_watts()
        highest_watts = max(rated_watts, self._highest_seen_watts)
        if not highest_watts:
            raise NotSupportedError(f"{self.name} ({self.uuid}) accepts no power limit")
        return PowerRange((rated_watts or highest_watts) / 2, highest_watts)

    def _is_ignored(self, limit_watts: float, before_watts: float, taken_watts: float) -> bool:
        """Whether a limit was ignored. Those below the lowest, which no file shows, are clamped in silence."""
        is_clamped = limit_watts < taken_watts < self._highest_seen_watts
        return not is_clamped and super()._is_ignored(limit_watts, before_watts, taken_watts)


def find_intel_gpus(environment: Mapping[str, str], order: Sequence[FrameworkGpu] | None) -> list[Gpu]:
    """Find the discrete GPUs, in the order of torch where it is known, else in that of PCI.

    The graphics of a processor have no sensors: they are measured as its part.

    Args:
        environment: `ZE_AFFINITY_MASK` chooses by index, if it is not empty; a tile stands for its board.
        order: torch's GPUs by its indices; None if they are not known.

    Raises:
        NoDeviceError: There is none.
    """
    root = sysfs_root()
    own = [card for card in find_cards(root) if card.driver in ("i915", "xe")]
    cards, cards_without = [card for card in own if card.sensors], [card for card in own if not card.sensors]
    if not cards:
        hint = "; the graphics of a processor are measured as its part" if cards_without else ""
        raise NoDeviceError(f"there is no GPU of Intel with sensors in {root}/class/drm{hint}")
    gpus = [IntelGpu(card) for card in cards]
    found = in_order(gpus, order)
    if found is not None:
        return found
    if order and len(gpus) > 1:
        _logger.warning("torch does not say which of %d GPUs of Intel is which: indices are in PCI order", len(gpus))
    mask = environment.get("ZE_AFFINITY_MASK")
    boards = ",".join(dict.fromkeys(tile.partition(".")[0] for tile in mask.split(","))) if mask else None
    return [gpus[place] for place in visible_places([gpu.uuid for gpu in gpus], boards)]
