"""`zeus-core leases`: list who controls which GPU."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from zeus_core.cli.text import table, write

if TYPE_CHECKING:
    from zeus_core.settings.entry import LedgerEntry

SUMMARY = "List who controls which GPU, and what ended processes have changed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def execute(arguments: argparse.Namespace) -> int:
    """Print the list. The exit code is 1 if something was left changed, or an entry cannot be read."""
    from zeus_core.settings.entry import LedgerEntry
    from zeus_core.settings.ledger import known_ledgers

    found = [(ledger, item) for ledger in known_ledgers() for item in ledger.read()]
    entries = [item for _, item in found if isinstance(item, LedgerEntry)]
    unreadable = [item for _, item in found if not isinstance(item, LedgerEntry)]
    stale = [ledger.is_stale(item) for ledger, item in found if isinstance(item, LedgerEntry)]
    if arguments.json:
        listing = {
            "format": "zeus-core leases",
            "version": 1,
            "leases": [
                {**entry.to_json(), "is_stale": is_stale} for entry, is_stale in zip(entries, stale, strict=True)
            ],
            "unreadable": [{"path": item.path, "reason": item.reason} for item in unreadable],
        }
        write(json.dumps(listing, indent=2), sys.stdout)
    else:
        rows = [_row(entry, is_stale) for entry, is_stale in zip(entries, stale, strict=True)]
        header = ("GPU", "UUID", "knob", "set to", "original", "state", "holder")
        lines = [table([header, *rows], "<<<>><<")] if rows else ["No GPU is controlled."]
        lines += map(str, unreadable)
        write("\n".join(lines), sys.stdout)
    return 1 if any(stale) or unreadable else 0


def _row(entry: LedgerEntry, is_stale: bool) -> tuple[str, ...]:
    kind = entry.kind
    ends = sorted({min(entry.values), max(entry.values)}) if entry.values else ()
    value = " to ".join(map(kind.text, ends)) or "-"
    state = "failed" if entry.failure else "left behind" if is_stale else "held"
    original = kind.text(entry.original)
    return entry.device_name, entry.device_uuid, kind.words, value, original, state, entry.holder
