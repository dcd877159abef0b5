"""Which GPUs `CUDA_VISIBLE_DEVICES` shows, read as CUDA reads it (CUDA programming guide, environment variables)."""

from collections.abc import Sequence

__all__ = ["visible_uuids"]


def visible_uuids(uuids: Sequence[str], variable: str | None) -> list[str]:
    """The visible GPUs, in the order of the framework's indices.

    Entries are indices or UUIDs, which may be cut short as long as one GPU alone begins so. The list ends before its
    first invalid entry: an unknown index or UUID, or a GPU named twice (which makes CUDA show none at all).

    Args:
        uuids: UUIDs of all GPUs, `GPU-...`, by index; empty for one that does not answer, which is never visible.
        variable: Value of `CUDA_VISIBLE_DEVICES`; None if unset, which shows all GPUs.
    """
    if variable is None:
        return [uuid for uuid in uuids if uuid]
    visible: list[str] = []
    for entry in variable.split(","):
        uuid = _find(uuids, entry.strip())
        if uuid is None:
            break
        if uuid in visible:
            return []
        visible.append(uuid)
    return visible


def _find(uuids: Sequence[str], entry: str) -> str | None:
    if entry.isdecimal():
        return uuids[int(entry)] or None if int(entry) < len(uuids) else None
    matches = [uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
