"""The state of an optimizer, saved in the checkpoints of its engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

_MARK = "zeus_deepspeed"  # distinguishes our entry from one of the same name by the user

_logger = logging.getLogger(__name__)


class Stateful(Protocol):
    """An object with a state, in JSON types."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        ...


class CheckpointedState:
    """Puts a state into the `client_state` of the checkpoints an engine saves, and takes it out when it loads one.

    The user's own `client_state` is not changed, and is returned as it was. DeepSpeed saves that of one rank of each
    stage, the one in the first data-parallel pipeline, and loads it on the ranks of that stage in all pipelines.

    Args:
        owner: The object whose state it is. If the state cannot be saved or used, a warning says so, and the checkpoint
            is saved or loaded without it.
        name: The state's name, for messages.
        key: That of its entry.
    """

    def __init__(self, owner: Stateful, name: str = "Perseus", key: str = "perseus") -> None:
        self._owner = owner
        self._name = name
        self._key = key

    def save(
        self,
        save_checkpoint: Callable[..., Any],
        save_dir: Any,
        tag: Any = None,
        client_state: Mapping[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Wraps `save_checkpoint`; its `client_state` may be None."""
        state = dict(client_state or {})
        if self._key in state:
            _logger.warning("the %s state is not saved: client_state already has a key %r", self._name, self._key)
        else:
            try:
                state[self._key] = {_MARK: self._owner.state_dict()}
            except Exception as error:
                _logger.warning("the %s state is not saved in this checkpoint: %r", self._name, error)
        return save_checkpoint(save_dir, tag, state, *args, **kwargs)

    def load(self, load_checkpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Wraps `load_checkpoint`."""
        path, client_state = load_checkpoint(*args, **kwargs)
        entry = (client_state or {}).get(self._key)
        if isinstance(entry, dict) and _MARK in entry:
            del client_state[self._key]
            try:
                self._owner.load_state_dict(entry[_MARK])
            except Exception as error:
                _logger.warning("the %s state in this checkpoint is unusable; starting over: %r", self._name, error)
        return path, client_state
