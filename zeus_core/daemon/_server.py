"""The requests of clients, and the thread that answers each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from zeus_core.daemon._audit import AuditLog
from zeus_core.daemon._desk import Desk
from zeus_core.daemon._peer import Client, Peer
from zeus_core.daemon._policy import NotAllowedError, Policy
from zeus_core.daemon._worker import Worker
from zeus_core.device.rapl import find_zone_folders, read_count, read_file
from zeus_core.device.remote.protocol import Request, encode_error, encode_result
from zeus_core.errors import DeviceHeldError, DriverFaultError, NoDeviceError, UsageError, ZeusError

_RETRY_SECONDS = 10.0  # between the tries to restore a device that failed: a driver that hangs needs a reset by hand
_REFUSALS = (UsageError, NotAllowedError, DeviceHeldError, NoDeviceError)


class Server:
    """Serves requests: those for a device in a thread of its own, and the others in that of their connection.

    The energy counters of CPUs have a thread too, as they may take their time.

    Args:
        policy: The rights of users.
        audit: The log of refused requests; the desks log the others.
        desks: The desk of each device, by UUID.
        powercap_root: Where the energy counters of CPUs are.
        simulated: The simulated GPUs that are served, as `ZEUS_SIMULATED_GPUS` names them; empty for real ones.
    """

    def __init__(
        self, policy: Policy, audit: AuditLog, desks: Mapping[str, Desk], powercap_root: Path, simulated: str = ""
    ) -> None:
        self._policy, self._audit, self._desks, self._simulated = policy, audit, desks, simulated
        self._zones = {folder.name: folder / "energy_uj" for folder in find_zone_folders(powercap_root)}
        self._loop = asyncio.get_running_loop()
        self._energy_worker = Worker("zeus-core energy", self._loop)
        self.workers = {uuid: Worker(f"zeus-core {uuid[:12]}", self._loop) for uuid in desks}
        """The thread of each device, by UUID."""
        self._retrying: set[str] = set()  # devices with a try in their queue
        self._loop.call_later(_RETRY_SECONDS, self._retry)

    def loop_of(self, request: Request) -> asyncio.AbstractEventLoop | None:
        """Return the loop in whose thread a request must be answered; None where any may."""
        is_of_cpu = request.operation == "energy"
        worker = self._energy_worker if is_of_cpu else self.workers.get(request.fields.get("device", ""))
        return None if worker is None else worker.loop

    def answer(self, client: Client, request: Request) -> bytes:
        """Return the reply to a request, in the thread that must serve it. Never raises."""
        try:
            return self._reply(client, request)
        except ZeusError as error:
            if isinstance(error, _REFUSALS):
                words = {"program": client.program, "job": client.job, "connection": client.connection}
                self.refuse(client.peer, error, **words, request=request.operation, **request.fields)
            return encode_error(request.number, error)
        except Exception as error:  # a defect of ours must not end the thread of a device that is to be restored
            return encode_error(request.number, DriverFaultError(f"the daemon failed: {error!r}"))

    def end(self, client: Client, devices: Iterable[str], why: str) -> None:
        """Restore what a client has changed, once the calls under way have returned."""
        for uuid in devices:
            self.workers[uuid].put(partial(self._desks[uuid].end, client, why))

    async def restore(self, seconds: float) -> list[str]:
        """Restore everything, and serve no device any more. Returns those that have not answered in time.

        Args:
            seconds: How long to wait.
        """
        ends = {uuid: worker.end(self._desks[uuid].end_all) for uuid, worker in self.workers.items()}
        if ends:
            await asyncio.wait(ends.values(), timeout=seconds)
        return [uuid for uuid, end in ends.items() if not end.done()]

    def refuse(self, peer: Peer, error: ZeusError, **words: Any) -> None:
        """Write a refused request, or connection, to the audit log. Any thread may call this."""
        fields = {"pid": peer.pid, "uid": peer.uid, **words, "because": str(error)}
        self._audit.note("refused", fields)

    def _retry(self) -> None:
        """Let each device restore what could not be restored. While its driver hangs, one try waits for it."""
        for uuid in self._desks.keys() - self._retrying:
            self._retrying.add(uuid)
            self.workers[uuid].put(partial(self._retry_one, uuid))
        self._loop.call_later(_RETRY_SECONDS, self._retry)

    def _retry_one(self, uuid: str) -> None:
        self._desks[uuid].retry()
        self._retrying.discard(uuid)

    def _reply(self, client: Client, request: Request) -> bytes:
        number, operation, fields = request
        if operation == "list":
            return encode_result(number, self._list())
        if operation == "energy":
            return encode_result(number, self._read_energy(client, fields["zone"]))
        desk = self._desks.get(fields["device"])
        if desk is None:
            has = ", ".join(self._desks) or "none"
            raise NoDeviceError(f"the daemon has no device {fields['device']}; it has {has}")
        return desk.answer(client, request)

    def _list(self) -> dict[str, Any]:
        held = [lease for desk in self._desks.values() for lease in desk.held()]
        return {
            "devices": list(self._desks),
            "simulated": self._simulated,
            "events": self._audit.counts(),
            "leases": [
                {
                    "device": entry.device_uuid,
                    "knob": entry.knob,
                    "original": entry.original,
                    "value": value,
                    "pid": entry.owner.pid,
                    "uid": entry.uid,
                    "program": entry.program,
                    "job": entry.job,
                    "since_seconds": entry.since_seconds,
                }
                for entry, value in held
            ],
        }

    def _read_energy(self, client: Client, zone: str) -> dict[str, Any]:
        self._policy.check_cpu_energy(client.peer)
        if zone not in self._zones:
            raise NoDeviceError(f"this machine has no energy counter {zone}")
        return {"microjoules": read_count(self._zones[zone], read_file)}
