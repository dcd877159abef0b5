"""Which GPUs a process sees, and in which order.

`CUDA_VISIBLE_DEVICES` is read as CUDA reads it (CUDA programming guide, environment variables), and other
vendors' variables alike.
"""

from collections.abc import Mapping, Sequence

from zeus_core.device.gpu import Gpu
from zeus_core.ports.accelerator import FrameworkGpu


def visible_places(
    uuids: Sequence[str | None], variable: str | None, mig_parents: Mapping[str, str] | None = None
) -> list[int]:
    """Return the places of the visible GPUs in the list of all, in the order of CUDA's indices.

    Entries are indices, or UUIDs or the beginning of one that no other GPU shares. The list ends before its first
    invalid entry. A GPU named twice makes CUDA show none. A MIG device stands for the GPU it is a part of, and is the
    only one CUDA shows.

    Args:
        uuids: UUIDs of all GPUs, `GPU-...`, in the driver's order; None if unknown. A UUID in the variable that no GPU
            has is taken for that of an unknown one, as long as there is one: no other GPU may get its index.
        variable: Value of `CUDA_VISIBLE_DEVICES`; None if unset, which shows all GPUs.
        mig_parents: The UUID of the GPU of each MIG device, by the UUID of the MIG device, `MIG-...`.
    """
    if variable is None:
        return list(range(len(uuids)))
    visible: list[int] = []
    for entry in map(str.strip, variable.split(",")):
        place = _place(uuids, entry, mig_parents or {}, visible)
        if entry.startswith("MIG-"):
            return visible if visible or place is None else [place]
        if place is None:
            break
        if place in visible:
            return []
        visible.append(place)
    return visible


def _place(
    uuids: Sequence[str | None], entry: str, mig_parents: Mapping[str, str], visible: Sequence[int]
) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    if entry.startswith("MIG-GPU-"):  # as before driver 470: MIG-GPU-<uuid>/instance/instance
        beginnings = [entry.removeprefix("MIG-").split("/")[0]]
    elif entry.startswith("MIG-"):
        beginnings = [parent for mig_uuid, parent in mig_parents.items() if mig_uuid.startswith(entry)]
    elif entry.startswith("GPU-"):
        beginnings = [entry]
    else:
        return None
    known = [place for begin in beginnings for place, uuid in enumerate(uuids) if uuid and uuid.startswith(begin)]
    if known:
        return known[0] if len(known) == 1 else None
    unknown = [place for place, uuid in enumerate(uuids) if uuid is None and place not in visible]
    return unknown[0] if unknown else None


def in_order(gpus: Sequence[Gpu], order: Sequence[FrameworkGpu] | None) -> list[Gpu] | None:
    """Return the GPUs in torch's order, by their PCI addresses; None if they are not known, or not all are found."""
    by_address = {address: gpu for gpu in gpus for address in gpu.pci_addresses}
    found = [by_address[gpu.pci_address] for gpu in order or () if gpu.pci_address in by_address]
    return found if found and len(found) == len(order or ()) else None
