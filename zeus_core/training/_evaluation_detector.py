"""Detects evaluations that a loop does not announce."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from zeus_core.adapters import contained
from zeus_core.adapters._forward_taps import ForwardTaps

__all__ = ["Evaluated", "EvaluationDetector"]


class Evaluated(NamedTuple):
    """The module whose pass began an evaluation."""

    module: Callable[[], Any]
    was_training: bool
    """Whether it was in training mode: then the pass was one without gradients."""

    @property
    def has_switched(self) -> bool:
        """Whether it has switched from evaluation mode to training mode since."""
        return not self.was_training and getattr(self.module(), "training", True)


class EvaluationDetector:
    """Detects evaluations by the forward passes of torch's modules between two steps.

    A pass in evaluation mode or without gradients begins an evaluation. It ends when the module is in training mode
    again, or when the loop reports something. A module is known from the first time that the loop switches its mode; if
    it switches none, from the first pass without gradients; and only if some of its parameters are trained.

    Args:
        report: Called with True when an evaluation begins, and with False when the module ends it; not by the other
            methods. This method of an object does not keep the object alive.
    """

    def __init__(self, report: Callable[[bool], object]) -> None:
        self._report = weakref.WeakMethod(report)
        self._taps: ForwardTaps | None = None
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._knows_none = True
        self._is_watching = False
        self._evaluated: Evaluated | None = None  # while an evaluation is under way

    def start(self) -> None:
        """Begin to learn which modules there are, and watch them."""
        self.stop()
        if "torch" in sys.modules:
            self._taps = ForwardTaps(self)
            self.watch()

    def stop(self) -> bool:
        """Leave the modules as they were. Return whether an evaluation was under way."""
        if self._taps is not None:
            self._taps.remove()
            self._taps = None
        self._known.clear()
        self._knows_none = True
        return self.ignore()

    def watch(self) -> None:
        """Watch the modules from now on: the loop is between two steps."""
        if self._taps is not None:
            self._is_watching = True
            if self._knows_none:
                self._taps.want_any_pass(True)

    def ignore(self) -> bool:
        """Ignore what the modules do, until `watch`. Return whether an evaluation was under way, which ends."""
        self._is_watching = False
        if self._knows_none and self._taps is not None:
            self._taps.want_any_pass(False)
        evaluated, self._evaluated = self._evaluated, None
        return evaluated is not None

    def end(self) -> bool:
        """End the evaluation that is under way. Return whether there was one."""
        evaluated, self._evaluated = self._evaluated, None
        return evaluated is not None

    @contained
    def on_any_pass(self, module: Any) -> None:
        """Report that a forward pass of a module that is not tapped begins, without gradients."""
        self._learn(module)
        if not self._knows_none:
            self.on_pass(module, has_gradients=False)

    @contained
    def on_pass(self, module: Any, has_gradients: bool) -> None:
        """Report that a forward pass begins."""
        if not self._is_watching:
            return
        if module.training and has_gradients:
            if self.end():
                self._call(False)
        elif self._evaluated is None:
            self._evaluated = Evaluated(weakref.ref(module), module.training)
            self._call(True)

    @contained
    def on_mode(self, module: Any) -> None:
        """Report that a module has switched its mode."""
        self._learn(module)
        if self._evaluated is not None and self._evaluated.has_switched and self.end():
            self._call(False)

    def _learn(self, module: Any) -> None:
        """Tap a module that is new, if some of its parameters are trained."""
        if self._taps is not None and module not in self._known:
            self._known.add(module)
            if any(parameter.requires_grad for parameter in module.parameters()):
                self._knows_none = False
                self._taps.want_any_pass(False)
                self._taps.add(module)

    def _call(self, is_evaluating: bool) -> None:
        report = self._report()
        if report is not None:
            report(is_evaluating)
