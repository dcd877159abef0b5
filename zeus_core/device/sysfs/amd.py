"""AMD's GPUs through amdgpu's files: their energy by `gpu_metrics`, and which of them ROCm shows to this process.

`gpu_metrics` is a binary table that begins with its size and its revision (drivers/gpu/drm/amd/include/
kgd_pp_interface.h). Revisions move their fields, and one was published with two sizes: only known pairs of revision and
size are read. Without one the power is integrated.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from zeus_core._sysfs import Card, find_cards, sysfs_root
from zeus_core.device.gpu import Gpu
from zeus_core.device.retry import retried
from zeus_core.device.sysfs.sysfs_gpu import SysfsGpu
from zeus_core.device.visible import in_order, visible_places
from zeus_core.errors import DeviceError, DriverFaultError, NoDeviceError, NotSupportedError
from zeus_core.ports.accelerator import FrameworkGpu
from zeus_core.ports.time_source import MonotonicTime, TimeSource
from zeus_core.process.lock import ProcessLock
from zeus_core.units import joules_from_amd_units, number_text

_logger = logging.getLogger(__name__)

_HEADER = struct.Struct("<HBB")  # size, format revision, content revision
_ENERGY = struct.Struct("<Q")
# The place of the energy accumulator, by format, content and size.
_ENERGY_PLACES = {
    (1, 1, 96): 24,
    (1, 2, 104): 24,
    (1, 3, 120): 24,
    (1, 4, 288): 24,
    (1, 5, 360): 88,
    (1, 6, 1664): 16,
    (1, 7, 2208): 24,
    (1, 8, 3360): 24,
}
_UNKNOWN_ENERGY = 2**64 - 1
_LONGEST_NAME = 64  # of a product
_INTEGRATED_FORMATS = frozenset({2, 3})  # of processors with graphics

# Counters of RDNA boards show 0 (ollama/ollama#9633), others stand still (ROCm/amdsmi#22) or run at another rate
# (ROCm/amdsmi#38). The numbers below are judgement, 2026-11-26: nothing here was measured on hardware.
_LOOK_SECONDS = 1.0
_LOOK_POLL_SECONDS = 0.01
_BUSY_WATTS = 20.0
_COMPARED_SECONDS = 10.0
_LARGEST_GAP_SECONDS = 0.5  # between two readings; the power between them is not known if it is longer
_LARGEST_DIFFERENCE = 0.2
_LAG_SECONDS = 1.0  # of the power sensor, behind each change of the power


class AmdGpu(SysfsGpu):
    """An AMD GPU, whose counter is used only as long as it agrees with the power.

    Args:
        card: Its files.
        others: The PCI addresses of its other dies.
        time_source: Times the readings of the counter; real time by default.
    """

    def __init__(self, card: Card, others: Sequence[str] = (), time_source: TimeSource | None = None) -> None:
        name = card.text("product_name")
        if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
            name = f"AMD GPU {card.text('device') or card.uuid}"
        super().__init__(card, name + (f", {1 + len(others)} dies" if others else ""), others)
        self.no_counter_because: str | None = None
        """Why the energy counter is not used, once that is known; None if it is used."""
        self._time_source = time_source or MonotonicTime()
        self._comparison: _Comparison | None = None
        self._lock = ProcessLock()

    def read_energy_counter_joules(self) -> float:
        """Read the energy accumulator of `gpu_metrics`."""
        with self._lock:  # readings of several threads must come in the order of time
            if self.no_counter_because is not None:
                raise NotSupportedError(self.no_counter_because)
            at, counter_joules = self._time_source.now(), read_energy_joules(self._card)
            if self._comparison is None:
                counter_joules = self._look(counter_joules)
                at = self._time_source.now()
            try:
                power_watts = self.read_power_watts()
            except DeviceError:  # nothing to compare it with
                self._comparison = _Comparison()
                return counter_joules
            self._comparison = self._comparison or _Comparison()
            reason = self._comparison.add(at, counter_joules, power_watts)
            if reason is not None:
                self._drop(reason)
            return counter_joules

    def _look(self, first_joules: float) -> float:
        """Look at the counter until it moves: one that works does so each millisecond or so. Returns the latest."""
        begin = self._time_source.now()
        powers: list[float] = []
        counter_joules = first_joules
        while counter_joules == first_joules and self._time_source.now() - begin < _LOOK_SECONDS:
            with suppress(DeviceError):
                powers.append(self.read_power_watts())
            self._time_source.sleep(_LOOK_POLL_SECONDS)
            counter_joules = read_energy_joules(self._card)
        if counter_joules == first_joules and (first_joules == 0 or min(powers, default=0.0) > _BUSY_WATTS):
            power = f", while the power is {number_text(powers[-1])} W" if powers else ""
            self._drop(f"the energy counter stands still at {first_joules:.0f} J{power}")
        return counter_joules

    def _drop(self, reason: str) -> None:
        self.no_counter_because = f"{reason}: it is not used, and the power is integrated"
        _logger.warning("%s (%s): %s", self.name, self.uuid, self.no_counter_because)
        raise NotSupportedError(self.no_counter_because)


class _Comparison:
    """The energy of a counter beside the integral of the power, over readings that come close together."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._joules = 0.0
        self._powers = (0.0, 0.0)

    def add(self, at: float, counter_joules: float, power_watts: float) -> str | None:
        """Add a reading. Returns in what they differ, if they do after some seconds."""
        last_at, last_watts = self._last
        if self._first is None or at - last_at > _LARGEST_GAP_SECONDS:
            self._first, self._joules, self._powers = (at, counter_joules), 0.0, (power_watts, power_watts)
        self._last = at, power_watts
        begin, first_joules = self._first
        if begin == at:
            return None
        self._joules += (last_watts + power_watts) / 2 * (at - last_at)
        lowest_watts, highest_watts = self._powers
        self._powers = lowest_watts, highest_watts = min(lowest_watts, power_watts), max(highest_watts, power_watts)
        if at - begin < _COMPARED_SECONDS:
            return None
        seconds, integral_joules, counted_joules = at - begin, self._joules, counter_joules - first_joules
        self._first, self._joules, self._powers = (at, counter_joules), 0.0, (power_watts, power_watts)
        most_joules = _LARGEST_DIFFERENCE * integral_joules + _LAG_SECONDS * (highest_watts - lowest_watts)
        if integral_joules < _BUSY_WATTS * seconds or abs(counted_joules - integral_joules) <= most_joules:
            return None
        counted_watts, watts = counted_joules / seconds, integral_joules / seconds
        return f"the energy counter shows {number_text(counted_watts)} W, and the power {number_text(watts)} W"


def read_energy_joules(card: Card) -> float:
    """Read the energy accumulator of `gpu_metrics`.

    Raises:
        NotSupportedError: There is none, or its layout is not known.
        DeviceError: It cannot be read now.
    """
    table = card.read("gpu_metrics")
    if len(table) < _HEADER.size:
        raise DriverFaultError(f"gpu_metrics of {card.uuid} has {len(table)} bytes")
    size, *revision = _HEADER.unpack_from(table)
    place = _ENERGY_PLACES.get((*revision, size))
    if place is None:
        version = ".".join(map(str, revision))
        raise NotSupportedError(f"gpu_metrics {version} of {size} bytes is not known: there is no energy counter")
    if len(table) < size:
        raise DriverFaultError(f"gpu_metrics of {card.uuid} ends after {len(table)} of {size} bytes")
    (energy,) = _ENERGY.unpack_from(table, place)
    if energy == _UNKNOWN_ENERGY:
        raise NotSupportedError(f"gpu_metrics of {card.uuid} says that there is no energy counter")
    return joules_from_amd_units(energy)


def find_amd_gpus(environment: Mapping[str, str], order: Sequence[FrameworkGpu] | None, is_for_rocm: bool) -> list[Gpu]:
    """Find the GPUs that ROCm shows to this process, in its order; those of one board are the same object.

    Args:
        environment: `ROCR_VISIBLE_DEVICES` chooses first, by index or UUID; `HIP_VISIBLE_DEVICES`, or without it
            `CUDA_VISIBLE_DEVICES`, chooses among the rest.
        order: torch's GPUs by its indices; None if they are not known.
        is_for_rocm: Whether the program computes by ROCm: only then processors with graphics are used. Their power is
            that of the processor, which is measured as such.

    Raises:
        NoDeviceError: There is none.
    """
    root = sysfs_root()
    if not Path(root, "class/drm").is_dir():
        raise NoDeviceError(f"there is no folder {root}/class/drm")
    boards = _boards([card for card in find_cards(root) if card.driver == "amdgpu"])
    is_left_out = [not is_for_rocm and _is_integrated(card) for card, _ in boards]
    gpus = [AmdGpu(*board) for board, left_out in zip(boards, is_left_out, strict=True) if not left_out]
    found = in_order(gpus, order)
    if found is not None:
        return _warned(found)
    if not gpus:
        hint = "; the graphics of a processor are measured as its part" if any(is_left_out) else ""
        raise NoDeviceError(f"there is no AMD GPU in {root}/class/drm{hint}")
    by_address = {address: gpu for gpu in gpus for address in gpu.pci_addresses}
    nodes = [(by_address[address], uuid) for address, uuid in _rocm_nodes(root) if address in by_address]
    nodes = nodes or [(gpu, gpu.uuid) for gpu in gpus for _ in gpu.pci_addresses or [gpu.uuid]]
    hip = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    for variable in (environment.get("ROCR_VISIBLE_DEVICES"), hip):
        nodes = [nodes[place] for place in visible_places([uuid for _, uuid in nodes], variable)]
    return _warned([gpu for gpu, _ in nodes])


def _boards(cards: Sequence[Card]) -> list[tuple[Card, list[str]]]:
    """Return the boards in PCI order: a card that has the sensors, and the PCI addresses of the other dies.

    The second die of an MI250 shows neither energy nor power nor limit: those of the first are of both
    (`aldebaran_is_primary` in drivers/gpu/drm/amd/pm/swsmu/smu13/aldebaran_ppt.c).
    """
    models = [card.text("device") for card in cards]
    seconds = [card for card, model in zip(cards, models, strict=True) if models.count(model) > 1 and _is_second(card)]
    boards: dict[str, tuple[Card, list[str]]] = {card.name: (card, []) for card in cards}
    for second in seconds:
        model = second.text("device")
        free = [card for card in cards if card not in seconds and card.text("device") == model != ""]
        free = [card for card in free if not boards[card.name][1] and _power_watts(card)]
        first = _first_of(second, free)
        if first is not None:
            boards[first.name][1].append(second.pci_address or second.name)
            del boards[second.name]
    return list(boards.values())


def _is_second(card: Card) -> bool:
    """Whether a card may be the second die of a board."""
    try:
        return card.pci_address is not None and not _power_watts(card) and read_energy_joules(card) == 0
    except DeviceError:
        return False


def _first_of(second: Card, firsts: Sequence[Card]) -> Card | None:
    """Return the first die of the board of a second one: that of its serial number; without one, that before it."""
    for name in ("serial_number", "unique_id"):
        alike = [card for card in firsts if second.text(name) and card.text(name) == second.text(name)]
        if alike:
            return alike[0]
    if second.text("serial_number"):
        firsts = [card for card in firsts if not card.text("serial_number")]
    before = [card for card in firsts if (card.pci_address or "") < (second.pci_address or "")]
    return next(iter([*before[-1:], *firsts]), None)


def _power_watts(card: Card) -> float:
    """Read the power of a card; 0 where it shows none."""
    for name in ("power1_input", "power1_average"):
        try:
            return retried(partial(card.read_watts, name))
        except DeviceError:
            continue
    return 0.0


def _is_integrated(card: Card) -> bool:
    """Whether a card is a part of a processor."""
    try:
        table = retried(lambda: card.read("gpu_metrics"))
    except DeviceError:
        return False
    return len(table) >= _HEADER.size and _HEADER.unpack_from(table)[1] in _INTEGRATED_FORMATS


def _rocm_nodes(root: str) -> list[tuple[str, str]]:
    """Read the PCI address, without the function, and the UUID of each GPU in the order of ROCm.

    A partition of a board is a node of its own, with the address of the board (kfd_topology.c).
    """
    folder = Path(root, "class/kfd/kfd/topology/nodes")
    found: list[tuple[str, str]] = []
    try:
        nodes = sorted((node for node in folder.iterdir() if node.name.isdecimal()), key=lambda node: int(node.name))
    except OSError:
        return []
    for node in nodes:
        try:
            lines = (node / "properties").read_text(encoding="ascii").splitlines()
            facts = {key: int(value) for key, _, value in (line.partition(" ") for line in lines)}
        except (OSError, ValueError):  # of another container
            continue
        if facts.get("simd_count"):
            place = facts.get("location_id", 0)
            address = f"{facts.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}"
            found.append((address, f"GPU-{facts.get('unique_id', 0):016x}"))
    return found


def _warned(gpus: list[Gpu]) -> list[Gpu]:
    """Say so where only one die of a board is used: its energy is that of the board."""
    for gpu in dict.fromkeys(gpus):
        if gpus.count(gpu) < len(gpu.pci_addresses):
            _logger.warning("%s (%s): one die is used, and energies are those of the whole board", gpu.name, gpu.uuid)
    return gpus
