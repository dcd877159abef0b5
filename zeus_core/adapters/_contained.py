"""Methods called from inside training, which no error may leave."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from zeus_core.errors import ZeusError

__all__ = ["contained"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_REPORTED = "_has_reported_a_fault"

_logger = logging.getLogger(__name__)


def contained(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result | None]:
    """Decorate a method so that no error leaves it: None is returned instead.

    The first error of an object is logged; what follows from it is not. Ctrl-C and its like pass.
    """

    @functools.wraps(method)
    def contained_method(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result | None:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            _report_once(args[0], method.__name__, error)
            return None

    return contained_method


def _report_once(reporter: Any, method_name: str, error: Exception) -> None:
    if getattr(reporter, _REPORTED, False):
        return
    setattr(reporter, _REPORTED, True)
    _logger.error(
        "%s.%s failed, and training goes on without what it does: %s",
        type(reporter).__name__,
        method_name,
        error,
        exc_info=not isinstance(error, ZeusError),
    )
