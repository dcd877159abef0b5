"""Which GPUs `CUDA_VISIBLE_DEVICES` shows, read as CUDA reads it (CUDA programming guide, environment variables)."""

from collections.abc import Mapping, Sequence

__all__ = ["visible_uuids"]


def visible_uuids(
    uuids: Sequence[str], variable: str | None, mig_parents: Mapping[str, str] | None = None
) -> list[str]:
    """The visible GPUs, in the order of CUDA's indices.

    Entries are indices or UUIDs, which may be cut short as long as one GPU alone begins so. The list ends before its
    first invalid entry; a GPU named twice makes CUDA show none at all. A MIG device stands for the GPU it is a part of,
    and is the only one CUDA shows.

    Args:
        uuids: UUIDs of all GPUs, `GPU-...`, by index; empty for one that does not answer, which is never visible.
        variable: Value of `CUDA_VISIBLE_DEVICES`; None if unset, which shows all GPUs.
        mig_parents: The UUID of the GPU of each MIG device, by the latter's UUID, `MIG-...`.
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
    """The GPU of a MIG device, named by its own UUID or as drivers before 470 did: MIG-GPU-<uuid>/instance/instance."""
    if entry.startswith("MIG-GPU-"):
        return _find(uuids, entry.removeprefix("MIG-").split("/")[0])
    return _only([parent for mig_uuid, parent in mig_parents.items() if mig_uuid.startswith(entry)])


def _only(matches: Sequence[str]) -> str | None:
    return matches[0] if len(matches) == 1 else None
