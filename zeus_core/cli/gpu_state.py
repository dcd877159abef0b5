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

HEADER = ("GPU", "name", "busy", "memory", "temp", "power", "limit", "enforced", "possible", "SM clock", "used by")
SIDES = "><>>>>>>>><"


def facts_of(gpu: Gpu) -> dict[str, Any]:
    """Read what does not change, as fields of the JSON document: its identity, and the ranges of its settings."""
    limits, clocks = readable(gpu.read_power_limit_range_watts), readable(gpu.read_supported_sm_clocks_mhz)
    return {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "is_simulated": gpu.is_simulated,
        "default_limit_watts": readable(gpu.read_default_power_limit_watts),
        "lowest_limit_watts": limits and limits.lowest_watts,
        "highest_limit_watts": limits and limits.highest_watts,
        "lowest_sm_clock_mhz": min(clocks) if clocks else None,
        "highest_sm_clock_mhz": max(clocks) if clocks else None,
        "has_energy_counter": readable(gpu.read_energy_counter_joules) is not None,
    }


def load_of(gpu: Gpu) -> dict[str, Any]:
    """Read its state now, as fields of the JSON document. `users` has the user and the job of each process on it."""
    from zeus_core.device.sharing import identities_on
    from zeus_core.ports.run_identity import identity_of

    processes = identities_on(gpu)
    people = None if processes is None else [identity_of(*process) for process in processes]
    memory = readable(gpu.read_memory_bytes)
    return {
        "utilization": readable(gpu.read_utilization),
        "memory_used_bytes": memory and memory[0],
        "memory_bytes": memory and memory[1],
        "temperature_celsius": readable(gpu.read_temperature_celsius),
        "power_watts": readable(gpu.read_power_watts),
        "limit_watts": readable(gpu.read_power_limit_watts),
        "enforced_limit_watts": readable(gpu.read_enforced_power_limit_watts),
        "sm_clock_mhz": readable(gpu.read_sm_clock_mhz),
        "users": None if people is None else sorted({(person.user, person.job) for person in people}),
    }


def row_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a GPU below `HEADER`, but for its index, by its facts and its load."""
    used, size = ((fields[name] or 0) / 2**30 for name in ("memory_used_bytes", "memory_bytes"))
    lowest, highest = fields["lowest_limit_watts"], fields["highest_limit_watts"]
    return (
        fields["name"],
        NOT_MEASURED if fields["utilization"] is None else f"{fields['utilization']:.0%}",
        NOT_MEASURED if fields["memory_bytes"] is None else f"{used:.0f}/{size:.0f} GiB",
        _quantity(fields["temperature_celsius"], "°C"),
        *(watts(fields[name]) for name in ("power_watts", "limit_watts", "enforced_limit_watts")),
        NOT_MEASURED if lowest is None else f"{number_text(lowest)} to {watts(highest)}",
        _quantity(fields["sm_clock_mhz"], "MHz"),
        ", ".join(" ".join(filter(None, pair)) for pair in fields["users"] or ()) or NOT_MEASURED,
    )


@dataclass(frozen=True)
class HeldSettings:
    """The settings that processes of zeus-core have changed, by the ledger.

    Attributes:
        entries: Each change, and whether its process has ended.
        unreadable: The files that cannot be read.
    """

    entries: list[tuple[LedgerEntry, bool]]
    unreadable: list[UnreadableEntry]

    @classmethod
    def read(cls, gpus: Collection[Gpu] | None) -> HeldSettings:
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
