"""The GPUs that `CUDA_VISIBLE_DEVICES` shows, read as CUDA reads it (CUDA programming guide, environment variables)."""

from collections.abc import Mapping, Sequence

__all__ = ["visible_uuids"]


def visible_uuids(
    uuids: Sequence[str], variable: str | None, mig_parents: Mapping[str, str] | None = None
) -> list[str]:
    """Return the UUIDs of the visible GPUs, in the order of CUDA's indices.

    Entries are indices, or UUIDs or the beginning of one that no other GPU shares. The list ends before its first
    invalid entry. A GPU named twice makes CUDA show none. A MIG device stands for the GPU it is a part of, and is the
    only one CUDA shows.

    Args:
        uuids: UUIDs of all GPUs, `GPU-...`, by index; empty for one that does not answer, which is never visible.
        variable: Value of `CUDA_VISIBLE_DEVICES`; None if unset, which shows all GPUs.
        mig_parents: The UUID of the GPU of each MIG device, by the UUID of the MIG device, `MIG-...`.
    """
    if variable is None:
        return [uuid for uuid in uuids if uuid]
    visible: list[str] = []
    for entry in map(str.strip, variable.split(",")):
        if entry.startswith("MIG-"):
            parent = _mig_parent(uuids, entry, mig_parents or {})
            return visible if visible or parent is None else [parent]
        uuid = _find(uuids, entry)
        if uuid is None:
            break
        if uuid in visible:
            return []
        visible.append(uuid)
    return visible


def _find(uuids: Sequence[str], entry: str) -> str | None:
    if entry.isdecimal():
        return uuids[int(entry)] or None if int(entry) < len(uuids) else None
    return _only([uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)])


def _mig_parent(uuids: Sequence[str], entry: str, mig_parents: Mapping[str, str]) -> str | None:
    """Find the GPU of a MIG device, named by its UUID or, as before driver 470, MIG-GPU-<uuid>/instance/instance."""
    if entry.startswith("MIG-GPU-"):
        return _find(uuids, entry.removeprefix("MIG-").split("/")[0])
    return _only([parent for mig_uuid, parent in mig_parents.items() if mig_uuid.startswith(entry)])


def _only(matches: Sequence[str]) -> str | None:
    return matches[0] if len(matches) == 1 else None
