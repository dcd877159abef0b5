"""Sees the forward passes of trained models, and distinguishes those of an evaluation from those of a training step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import Enum
from threading import get_ident
from typing import Any

import torch

# After as many steps, each with one pass without gradients before it, such a pass is taken for a part of the next step.
_STEPS_OF_A_HABIT = 2


class PassKind(Enum):
    """The kinds of forward pass of a trained model."""

    TRAINING = "training"
    """It belongs to a step, and begins one if none is under way."""
    PART = "part"
    """It belongs to the work that is under way."""
    EVALUATION = "evaluation"


class PassRules:
    """Decides what each pass is, from the passes and steps so far.

    in training mode, with gradients                    TRAINING
    between a TRAINING pass and its backward pass       PART
    in evaluation mode, with gradients                  EVALUATION, and TRAINING from the first on that is followed
                                                        by a backward pass: the model is trained in this mode
    in training mode, without gradients                 EVALUATION, but TRAINING if each of the latest steps began
                                                        with one of these, as those of an adapted model that is its
                                                        own reference
    in evaluation mode, without gradients               EVALUATION
    """

    def __init__(self) -> None:
        self._is_before_backward = False
        self._may_be_training = False  # the latest pass, if a backward pass follows
        self._trains_in_evaluation_mode = False
        self._passes: list[bool] = []  # before the next step: whether each was in training mode
        self._lone_passes = 0  # successive steps that one pass in training mode preceded

    def kind_of(self, is_in_training_mode: bool, has_gradients: bool) -> PassKind:
        """Decide what a pass is that begins now."""
        self._may_be_training = has_gradients
        if has_gradients and (is_in_training_mode or self._trains_in_evaluation_mode):
            self._is_before_backward = True
            return PassKind.TRAINING
        if self._is_before_backward:
            return PassKind.PART
        self._passes.append(is_in_training_mode)
        is_habit = self._lone_passes >= _STEPS_OF_A_HABIT and self._passes == [True]
        return PassKind.TRAINING if is_habit else PassKind.EVALUATION

    def on_backward(self) -> bool:
        """Note that a backward pass begins. Return whether the latest pass was for training against all appearance."""
        is_surprise = self._may_be_training and not self._is_before_backward
        self._trains_in_evaluation_mode = self._trains_in_evaluation_mode or is_surprise
        self._is_before_backward = self._may_be_training = False
        return is_surprise

    def on_step_end(self) -> None:
        """Note that a step has ended."""
        self._lone_passes = self._lone_passes + 1 if self._passes == [True] else 0
        self._passes = []
        self._is_before_backward = self._may_be_training = False


class PassHook:
    """Reports the forward passes of a module, in the thread that trains.

    Within what is compiled it does nothing. Copied or pickled with the module, it becomes a function of Python's own
    that returns the inputs as they are, so that a copy is loaded without this package too.

    Args:
        report: A method, called with the module. The hook does not keep its object alive.
    """

    def __init__(self, report: Callable[[torch.nn.Module], object]) -> None:
        self._report = weakref.WeakMethod(report)
        self._thread = get_ident()

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        """Report a pass that begins."""
        if torch.compiler.is_compiling() or get_ident() != self._thread:
            return
        report = self._report()
        if report is not None:
            report(module)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, ({}, "get")
