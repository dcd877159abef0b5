"""The passes of schedules that run them by functions of their own: `register_custom_function`, as GraphPP does.

Such a function is called in place of `stage.forward_one_chunk` and the like. It waits for its input itself, by a list
of receives that the schedule keeps (`fwd_recv_ops`, `bwd_recv_ops`). The wait is not part of the pass: one more
receive at the end of that list, which is there at once, shows that the others have arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

# The computation types of torch, and the lists of receives that their functions wait for. The function of both passes
# at once (OVERLAP_F_B) is none of these.
_PASSES = {
    "FORWARD": ("forward", "fwd_recv_ops"),
    "FULL_BACKWARD": ("backward", "bwd_recv_ops"),
    "BACKWARD_INPUT": ("backward-input", "bwd_recv_ops"),
    "BACKWARD_WEIGHT": ("backward-weight", None),
}
_FUNCTIONS = "_comp_type_to_function_map"


class _Report(Protocol):
    def __call__(self, name: str, stage: int, microbatch: int) -> None: ...


class CustomFunctionTap:
    """Reports the passes that custom functions run, those registered later too.

    Args:
        schedule: Any schedule; one that cannot have custom functions stays as it is.
        begin: Called at the beginning of a pass: its kind, stage and microbatch.
        end: Called at its end.
        note: Called with the inputs of the program for a forward pass, if it has any: those of a first stage.

    Attributes:
        is_running: Whether a custom function runs a pass now, so that nothing it calls is one too.
    """

    def __init__(self, schedule: Any, begin: _Report, end: Callable[[], None], note: Callable[..., None]) -> None:
        self._schedule = schedule
        self._begin = begin
        self._end = end
        self._note = note
        self._is_on = True
        self.is_running = False
        functions = getattr(schedule, _FUNCTIONS, None)
        if functions is not None:
            setattr(schedule, _FUNCTIONS, _TappedFunctions(functions, self._tapped))

    def detach(self) -> None:
        """Leave the schedule as it was, but for a tap that was attached since, which then only calls its functions."""
        self._is_on = False
        functions = getattr(self._schedule, _FUNCTIONS, None)
        if isinstance(functions, _TappedFunctions) and functions.tapped == self._tapped:
            setattr(self._schedule, _FUNCTIONS, functions.functions)

    def _tapped(self, computation_type: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        known = _PASSES.get(getattr(computation_type, "name", ""))
        if known is None:
            return function
        name, receives = known

        def run(action: Any, context: Any) -> None:
            if not self._is_on:
                function(action, context)
                return
            self.is_running = True
            place = action.stage_index, action.microbatch_index
            pending = getattr(self._schedule, receives, {}) if receives is not None else {}
            waited_for = pending.get(place)
            try:
                if waited_for is None:
                    self._begin(name, *place)
                else:
                    pending[place] = [*waited_for, _Arrived(lambda: self._begin(name, *place))]
                function(action, context)
                if place in pending:  # a function that does nothing, and leaves the wait to another
                    pending[place] = waited_for
                self._end()
                if name == "forward" and context.arg_mbs:
                    self._note(*context.arg_mbs[action.microbatch_index])
            finally:
                self.is_running = False

        return run


class _Arrived:
    """A receive that is there, and says so when it is waited for."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report

    def wait(self) -> None:
        self._report()


class _TappedFunctions(dict[Any, Any]):
    """The registered functions, each tapped when it is looked up."""

    def __init__(self, functions: dict[Any, Any], tapped: Callable[..., Any]) -> None:
        super().__init__(functions)
        self.functions = functions
        self.tapped = tapped

    def __setitem__(self, computation_type: Any, function: Any) -> None:
        super().__setitem__(computation_type, function)
        self.functions[computation_type] = function

    def __getitem__(self, computation_type: Any) -> Any:
        return self.tapped(computation_type, super().__getitem__(computation_type))
