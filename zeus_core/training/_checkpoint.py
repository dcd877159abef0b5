"""The energy of a run as a checkpoint keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zeus_core._codec import decode, encode
from zeus_core._documents import JsonFormat
from zeus_core.training._account import Account

__all__ = ["Checkpoint"]

_FORMAT = JsonFormat("zeus-core energy", 4)


@dataclass(frozen=True)
class Checkpoint:
    """The energy of a run at the moment of a checkpoint.

    Attributes:
        run: The name of the run, by which the journals know it.
        world_size: The number of ranks of the job.
        account: The account of all ranks as of the latest log, for a run whose journals are not at hand.
    """

    run: str
    world_size: int
    account: Account

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON document, which `from_json` reads."""
        return _FORMAT.document(encode(self))

    @classmethod
    def from_json(cls, document: Any) -> Checkpoint:
        """Read what `to_json` wrote.

        Raises:
            UsageError: It is something else.
        """
        return decode(cls, _FORMAT.fields(document))
