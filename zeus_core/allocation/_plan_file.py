"""Plans as JSON files: data only, versioned, and checked in full when read."""

from __future__ import annotations

from pathlib import Path

from zeus_core._codec import decode, encode
from zeus_core._documents import JsonFormat
from zeus_core._files import is_special
from zeus_core._validate import checked_instance, checked_path
from zeus_core.allocation._plan import AllocationPlan
from zeus_core.errors import UsageError

__all__ = ["read_plan", "write_plan"]

_FORMAT = JsonFormat("zeus-core allocation plan", 1)


def write_plan(plan: AllocationPlan, path: str | Path) -> None:
    """Write a plan to a file, which is replaced as a whole.

    Raises:
        UsageError: An argument is wrong; the message names it.
        OSError: The file cannot be written.
    """
    checked_instance("plan", plan, AllocationPlan, "allocate(devices, global_batch=512)")
    _FORMAT.write(Path(checked_path("path", path)), encode(plan))


def read_plan(path: str | Path) -> AllocationPlan:
    """Return the plan in a file.

    Raises:
        UsageError: The file cannot be read, or is not a plan; the message names it.
    """
    file = Path(checked_path("path", path))
    try:
        if is_special(file):
            raise UsageError("it is a folder or a device, not a file")
        return decode(AllocationPlan, _FORMAT.read(file), "the plan")
    except (OSError, UsageError) as error:
        raise UsageError(f"{file}: {error}") from error
