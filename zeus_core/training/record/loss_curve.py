"""Losses and metrics of evaluations beside the energy that a run had taken, in a bounded number of points. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_MAX_POINTS = 240  # as of power over time
_MAX_NAMES = 8


class LossPoint(NamedTuple):
    """A loss at a moment of a run.

    Attributes:
        step: The optimizer step.
        joules: The energy of all GPUs until then, as far as it was known at the latest log; with interrupted parts.
        value: The loss.
    """

    step: int
    joules: float
    value: float


class LossCurves:
    """Keeps points at even spacings of steps, which double whenever there are too many; of the first few names."""

    def __init__(self) -> None:
        self._points: dict[str, list[LossPoint]] = {}
        self._spacing: dict[str, int] = {}

    @property
    def points(self) -> dict[str, tuple[LossPoint, ...]]:
        """The points by name."""
        return {name: tuple(points) for name, points in self._points.items()}

    def add(self, name: str, point: LossPoint) -> None:
        """Add a point after the latest one."""
        if name not in self._points and len(self._points) == _MAX_NAMES:
            return
        points = self._points.setdefault(name, [])
        spacing = self._spacing.setdefault(name, 1)
        if len(points) > 1 and point.step - points[-2].step < spacing:
            points.pop()  # the latest is kept until the next one
        points.append(point)
        if len(points) > _MAX_POINTS:
            self._points[name] = [*points[:-1:2], points[-1]]
            self._spacing[name] = 2 * spacing


def energy_to(points: Sequence[LossPoint], loss: float) -> LossPoint | None:
    """Return the first point at a loss or below it; None if there is none."""
    return next((point for point in points if point.value <= loss), None)


def equal_loss(curves: Sequence[Mapping[str, Sequence[LossPoint]]]) -> tuple[str, float] | None:
    """Return the lowest loss that all of some runs have reached, with its name; None if they have none in common.

    That of an evaluation is preferred to that of training, which is of one batch.
    """
    common = [name for name in curves[0] if "loss" in name and all(each.get(name) for each in curves)]
    if not common:
        return None
    name = max(common, key=lambda each: (each != "loss", "eval" in each or "val" in each))
    return name, max(min(point.value for point in each[name]) for each in curves)
