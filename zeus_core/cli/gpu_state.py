"""The state of a GPU, its facts and its changed settings: the rows and the JSON of `zeus-core top`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeus_core.cli.text import NOT_MEASURED, readable, table, watts
from zeus_core.units import number_text

if TYPE_CHECKING:
    from zeus_core.device import Gpu
    from zeus_core.settings.entry import LedgerEntry
    from zeus_core.settings.entry_files import UnreadableEntry

LOAD_HEADER = ("GPU", "name", "busy", "memory", "temp", "power", "limit", "enforced", "SM clock", "used by")
LOAD_SIDES = "><>>>>>>><"
BOARD_HEADER = ("GPU", "UUID", "default", "limits", "SM clocks", "energy")
BOARD_SIDES = "><>>><"


@dataclass(frozen=True)
class Load:
    """The state of a GPU now; None is not known.

    Attributes:
        users: The user and the job of each process on it.
    """

    utilization: float | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    limit_watts: float | None
    enforced_limit_watts: float | None
    sm_clock_mhz: float | None
    users: tuple[tuple[str, str], ...] | None

    @classmethod
    def of(cls, gpu: Gpu) -> Load:
        """Read it."""
        from zeus_core.device.sharing import identities_on
        from zeus_core.ports.run_identity import identity_of

        processes = identities_on(gpu)
        people = None if processes is None else [identity_of(*process) for process in processes]
        memory = readable(gpu.read_memory_bytes)
        return cls(
            utilization=readable(gpu.read_utilization),
            memory_used_bytes=memory and memory[0],
            memory_bytes=memory and memory[1],
            temperature_celsius=readable(gpu.read_temperature_celsius),
            power_watts=readable(gpu.read_power_watts),
            limit_watts=readable(gpu.read_power_limit_watts),
            enforced_limit_watts=readable(gpu.read_enforced_power_limit_watts),
            sm_clock_mhz=readable(gpu.read_sm_clock_mhz),
            users=None if people is None else tuple(sorted({(person.user, person.job) for person in people})),
        )

    def cells(self) -> tuple[str, ...]:
        """Return its cells of the table."""
        used, size = ((value or 0) / 2**30 for value in (self.memory_used_bytes, self.memory_bytes))
        return (
            NOT_MEASURED if self.utilization is None else f"{self.utilization:.0%}",
            NOT_MEASURED if self.memory_bytes is None else f"{used:.0f}/{size:.0f} GiB",
            _quantity(self.temperature_celsius, "°C"),
            *map(watts, (self.power_watts, self.limit_watts, self.enforced_limit_watts)),
            _quantity(self.sm_clock_mhz, "MHz"),
            ", ".join(" ".join(filter(None, pair)) for pair in self.users or ()) or NOT_MEASURED,
        )


@dataclass(frozen=True)
class Board:
    """The facts of a GPU and the range of its settings; None is not known."""

    name: str
    uuid: str
    is_simulated: bool
    default_limit_watts: float | None
    lowest_limit_watts: float | None
    highest_limit_watts: float | None
    lowest_sm_clock_mhz: int | None
    highest_sm_clock_mhz: int | None
    has_energy_counter: bool

    @classmethod
    def of(cls, gpu: Gpu) -> Board:
        """Read it."""
        limits, clocks = readable(gpu.read_power_limit_range_watts), readable(gpu.read_supported_sm_clocks_mhz)
        return cls(
            name=gpu.name,
            uuid=gpu.uuid,
            is_simulated=gpu.is_simulated,
            default_limit_watts=readable(gpu.read_default_power_limit_watts),
            lowest_limit_watts=limits and limits.lowest_watts,
            highest_limit_watts=limits and limits.highest_watts,
            lowest_sm_clock_mhz=min(clocks) if clocks else None,
            highest_sm_clock_mhz=max(clocks) if clocks else None,
            has_energy_counter=readable(gpu.read_energy_counter_joules) is not None,
        )

    def cells(self) -> tuple[str, ...]:
        """Return its cells of the table."""
        return (
            self.uuid,
            watts(self.default_limit_watts),
            _range(self.lowest_limit_watts, self.highest_limit_watts, "W"),
            _range(self.lowest_sm_clock_mhz, self.highest_sm_clock_mhz, "MHz"),
            "counter" if self.has_energy_counter else "no counter",
        )


@dataclass(frozen=True)
class Settings:
    """The settings that processes of zeus-core have changed, by the ledger.

    Attributes:
        entries: Each change, and whether its process has ended.
        unreadable: The files that cannot be read.
    """

    entries: list[tuple[LedgerEntry, bool]]
    unreadable: list[UnreadableEntry]

    @classmethod
    def read(cls, gpus: Collection[Gpu] | None) -> Settings:
        """Read those of some GPUs, or all."""
        from zeus_core.settings.entry import LedgerEntry
        from zeus_core.settings.ledger import seen_ledgers

        entries: list[tuple[LedgerEntry, bool]] = []
        unreadable: list[UnreadableEntry] = []
        for ledger in seen_ledgers():
            for item in ledger.read():
                if gpus is not None and not any(item.is_of(gpu.uuid) for gpu in gpus):
                    continue
                if isinstance(item, LedgerEntry):
                    entries.append((item, ledger.is_stale(item)))
                else:
                    unreadable.append(item)
        return cls(entries, unreadable)

    def are_left(self) -> bool:
        """Return whether an ended process has left a change, or that is not known."""
        return bool(self.unreadable) or any(is_stale for _, is_stale in self.entries)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the JSON document."""
        return {
            "leases": [{**entry.to_json(), "is_stale": is_stale} for entry, is_stale in self.entries],
            "unreadable": [{"path": item.path, "reason": item.reason} for item in self.unreadable],
        }

    def text(self, gpus: Mapping[int, Gpu]) -> str:
        """Return a table, and a line for each file that cannot be read."""
        indices = {gpu.uuid: str(index) for index, gpu in gpus.items()}
        order = {uuid: place for place, uuid in enumerate(indices)}
        rows = []
        for entry, is_stale in sorted(self.entries, key=lambda item: order.get(item[0].device_uuid, len(order))):
            ends = sorted({min(entry.values), max(entry.values)}) if entry.values else ()
            value = " to ".join(map(entry.kind.text, ends)) or NOT_MEASURED
            state = "failed" if entry.failure else "left behind" if is_stale else "held"
            gpu = indices.get(entry.device_uuid, f"{entry.device_name} ({entry.device_uuid})")
            rows.append((gpu, entry.kind.words, value, entry.kind.text(entry.original), state, entry.holder))
        header = ("GPU", "setting", "set to", "original", "state", "controlled by")
        lines = [table([header, *rows], "<<>><<")] if rows else ["No GPU is controlled."]
        return "\n".join([*lines, *map(str, self.unreadable)])


def _quantity(value: float | None, unit: str) -> str:
    return NOT_MEASURED if value is None else f"{number_text(value)} {unit}"


def _range(lowest: float | None, highest: float | None, unit: str) -> str:
    if lowest is None or highest is None:
        return NOT_MEASURED
    return f"{number_text(lowest)} to {number_text(highest)} {unit}"
