"""What a checkpoint keeps of the energy of its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.training._account import Account

__all__ = ["Checkpoint"]

_FORMAT = "zeus-core energy"
_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """What is known when a checkpoint is made.

    Attributes:
        run: Name of the run, under which the journals know it.
        world_size: Ranks of the job.
        account: What all ranks have taken, as of the latest log, for a run whose journals are not at hand.
    """

    run: str
    world_size: int
    account: Account

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "run": self.run,
            "world_size": self.world_size,
            "account": self.account.to_json(),
        }

    @classmethod
    def from_json(cls, fields: Any) -> Checkpoint:
        """Read what `to_json` wrote.

        Raises:
            UsageError: It is something else.
        """
        try:
            if fields["format"] != _FORMAT or fields["version"] != _VERSION:
                raise UsageError(f'it does not say "format": "{_FORMAT}", "version": {_VERSION}')
            return cls(str(fields["run"]), int(fields["world_size"]), Account.from_json(fields["account"]))
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"this is not the energy state of a checkpoint: {error!r}") from error
