"""The shapes of what a pipeline works on, once they are the same for some steps."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

# Steps in a row that must have the same shapes: microbatches padded to their longest sequence differ all the time, and
# none of them is another work.
_STABLE_STEPS = 3


class StepShapes:
    """Notes the shapes of tensors, step by step."""

    def __init__(self) -> None:
        self._of_step: set[tuple[int, ...]] = set()
        self._recent: deque[frozenset[tuple[int, ...]]] = deque(maxlen=_STABLE_STEPS)

    def note(self, *values: Any) -> None:
        """Note those of the tensors in some values, as far as these are tensors, or lists and tuples of them."""
        for value in values:
            if isinstance(value, torch.Tensor):
                self._of_step.add(tuple(value.shape))
            elif isinstance(value, list | tuple):
                self.note(*value)

    def end_step(self) -> dict[str, int | str] | None:
        """End a step. Returns the facts for `use_work`; None while the shapes differ from step to step."""
        self._recent.append(frozenset(self._of_step))
        self._of_step.clear()
        if len(self._recent) < _STABLE_STEPS or len(set(self._recent)) > 1 or not self._recent[0]:
            return None
        return {"shapes": ", ".join("x".join(map(str, shape)) for shape in sorted(self._recent[0]))}
