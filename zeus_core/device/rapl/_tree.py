"""The shape of the powercap tree: where its zones are, and which lies within which.

A zone is a folder such as `intel-rapl:0`, and a zone within it `intel-rapl:0:1`; the numbers are hexadecimal
(drivers/powercap/powercap_sys.c, `powercap_register_zone`). /sys/class/powercap shows all of them side by side, and
each once more inside the zone or the control type (`intel-rapl`) it belongs to. AMD processors use the same names.
`intel-rapl-mmio` is another way to the same package and is passed over.
"""

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["find_zone_folders", "is_within"]

_CONTROL_TYPE = "intel-rapl"
_ZONE = re.compile(_CONTROL_TYPE + "(:[0-9a-f]+)+", re.ASCII)


def find_zone_folders(root: Path) -> list[Path]:
    """The folder of each zone, once, in the order of their numbers. Empty without a tree."""
    folders: dict[str, Path] = {}
    to_visit = [root, root / _CONTROL_TYPE]
    while to_visit:
        for folder in _zones_in(to_visit.pop(0)):
            if folder.name not in folders:  # which also ends the walk, for the tree has links that lead back up
                folders[folder.name] = folder
                to_visit.append(folder)
    return sorted(folders.values(), key=_numbers)


def is_within(inner: Path, outer: Path) -> bool:
    """Whether one zone is a part of another, which their names tell."""
    return inner.name.startswith(f"{outer.name}:")


def _zones_in(folder: Path) -> Iterator[Path]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    yield from (entry for entry in entries if _ZONE.fullmatch(entry.name))


def _numbers(folder: Path) -> list[int]:
    return [int(number, 16) for number in folder.name.split(":")[1:]]
