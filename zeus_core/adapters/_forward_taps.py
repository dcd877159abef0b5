"""Reports the forward passes of torch's modules, and leaves nothing on them.

A tapped module has an attribute of its own, `_compiled_call_impl`: torch calls it in place of the module, as
`Module.compile` wants it to, and drops it when the module is pickled or copied. A hook would be pickled and copied with
the module, would keep `torch.jit.script` from working, and would become a part of what `torch.compile` compiles.

Torch is looked up among the modules the program has already imported; it is never imported from here.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from zeus_core.adapters._patch import Patches

__all__ = ["ForwardTaps", "PassListener"]

_ATTRIBUTE = "_compiled_call_impl"


class PassListener(Protocol):
    """Told what happens to modules, often, between two calls of the program's own: must be quick, and never raise."""

    def on_any_pass(self, module: Any) -> None:
        """Report that a forward pass of any module without gradients begins, if `want_any_pass` asked for it."""
        ...

    def on_pass(self, module: Any, has_gradients: bool) -> None:
        """Report that a forward pass of a tapped module begins; not those of tapped modules within it."""
        ...

    def on_mode(self, module: Any) -> None:
        """Report that `train` or `eval` of a module, tapped or not, was called; not those of the modules in it."""
        ...


class ForwardTaps:
    """Reports what happens to modules, until `remove`: their forward passes, and switches of their mode.

    Args:
        listener: Told of it, as long as it exists; it is not kept alive.
    """

    def __init__(self, listener: PassListener) -> None:
        self.listener = weakref.ref(listener)
        self.is_in_pass = False
        self._taps: list[_Tap] = []
        self._tapped: weakref.WeakSet[Any] = weakref.WeakSet()
        _listen(self)

    def add(self, module: Any) -> None:
        """Tap a module, once. Does nothing to one of a torch that is too old."""
        if hasattr(module, _ATTRIBUTE) and module not in self._tapped:
            self._tapped.add(module)
            self._taps.append(_Tap(module, self))

    def want_any_pass(self, is_wanted: bool) -> None:
        """Report passes without gradients of all modules from now on, or no longer."""
        if is_wanted:
            _wanting[id(self)] = self.listener
        else:
            _wanting.pop(id(self), None)

    def __contains__(self, module: Any) -> bool:
        return module in self._tapped

    def remove(self) -> None:
        """Leave all modules as they were."""
        _release(id(self))
        for tap in self._taps:
            tap.remove()
        self._taps.clear()
        self._tapped.clear()


class _Tap:
    """Called in place of a module. Keeps neither the module nor those who listen alive."""

    def __init__(self, module: Any, taps: ForwardTaps) -> None:
        torch: Any = sys.modules["torch"]
        self._is_compiling = torch.compiler.is_compiling
        self._has_gradients = torch.is_grad_enabled
        self._module = weakref.ref(module)
        self._taps: Callable[[], ForwardTaps | None] = weakref.ref(taps)
        self._thread = threading.get_ident()
        self._earlier = vars(module).get(_ATTRIBUTE)  # made by `Module.compile`, or another tap
        vars(module)[_ATTRIBUTE] = self  # not by `setattr`, which `torch.compile` passes on to the original module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._module()
        taps = None
        if self._is_compiling():
            pass  # `torch.compile` of something around the module shall compile the module, and nothing of ours
        elif threading.get_ident() == self._thread:
            taps = self._taps()
        else:  # maybe a thread of DataParallel, with a copy of the module that shares its attributes, and so this tap
            module = sys._getframe(1).f_locals.get("self", module)
        call = self._earlier or module._call_impl
        listener = None if taps is None or taps.is_in_pass else taps.listener()
        if taps is None or listener is None:
            return call(*args, **kwargs)
        listener.on_pass(module, self._has_gradients())
        taps.is_in_pass = True
        try:
            return call(*args, **kwargs)
        finally:
            taps.is_in_pass = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # modules that pickle or copy all their attributes leave out the tap too

    def remove(self) -> None:
        """Leave the module as it was. A tap that was compiled or tapped again since stays, and does nothing."""
        self._taps = _no_taps
        module = self._module()
        if module is None or vars(module).get(_ATTRIBUTE) is not self:
            return
        if self._earlier is None:
            del vars(module)[_ATTRIBUTE]
        else:
            vars(module)[_ATTRIBUTE] = self._earlier


def _no_taps() -> None:
    """Stand in for taps that were removed."""


# Classes of torch are patched once, while there are taps: `torch.nn.Module.train`, which `eval` calls too, and the
# scopes without gradients.
_taps: dict[int, weakref.ref[ForwardTaps]] = {}
_patches: list[Patches] = []
_wanting: dict[int, weakref.ref[PassListener]] = {}  # by the identity of their taps
_switching_threads: set[int] = set()
_hooks: list[Any] = []  # at most one, for all modules, within a scope without gradients


def _listen(taps: ForwardTaps) -> None:
    _taps[id(taps)] = weakref.ref(taps)
    weakref.finalize(taps, _release, id(taps)).atexit = False
    if not _patches:
        torch: Any = sys.modules["torch"]
        _patches.append(Patches(torch.nn.Module))
        _patches[0].wrap("train", _train)
        for scope in (torch.no_grad, torch.inference_mode):
            _patches.append(Patches(scope))
            _patches[-1].replace("__enter__", _entering)
            _patches[-1].replace("__exit__", _exiting)


def _release(taps_id: int) -> None:
    _taps.pop(taps_id, None)
    _wanting.pop(taps_id, None)
    while _patches and not _taps:
        _patches.pop().undo()
        _remove_hook()


def _listeners() -> list[PassListener]:
    taps = [reference() for reference in list(_taps.values())]
    listeners = [each.listener() for each in taps if each is not None]
    return [listener for listener in listeners if listener is not None]


# Programs enter scopes within their steps too, so the next two are as quick as can be.
def _entering(enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def enter_scope(scope: Any) -> Any:
        result = enter(scope)
        if _wanting and not _hooks and not _has_compiled():
            _hooks.append(sys.modules["torch"].nn.modules.module.register_module_forward_pre_hook(_on_any_pass))
        return result

    return enter_scope


def _exiting(leave: Callable[..., Any]) -> Callable[..., Any]:
    def leave_scope(scope: Any, kind: Any, error: Any, traceback: Any) -> Any:
        result = leave(scope, kind, error, traceback)
        if _hooks and sys.modules["torch"].is_grad_enabled():
            _remove_hook()
        return result

    return leave_scope


def _has_compiled() -> bool:
    """Return whether dynamo has compiled anything: compiled modules warn of hooks for all modules."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters)


def _on_any_pass(module: Any, inputs: Any) -> None:
    for reference in list(_wanting.values()):
        listener = reference()
        if listener is not None:
            listener.on_any_pass(module)
    if not _wanting:
        _remove_hook()


def _remove_hook() -> None:
    while _hooks:
        _hooks.pop().remove()


def _train(train: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """Switch the mode of a module, and report it; that of the modules in it is switched within this call."""
    thread = threading.get_ident()
    if thread in _switching_threads:
        return train(module, *args, **kwargs)
    _switching_threads.add(thread)
    try:
        result = train(module, *args, **kwargs)
    finally:
        _switching_threads.discard(thread)
    for listener in _listeners():
        listener.on_mode(module)
    return result
