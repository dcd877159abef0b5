"""A problem as arrays, for the loops that choose among real clocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline._dependencies import Indices, Numbers
from zeus_core.pipeline._problem import Problem

__all__ = ["ChoiceArrays", "choice_arrays"]


class ChoiceArrays(NamedTuple):
    """The dependency graph, and the choices of each kind.

    Attributes:
        first_arc: See `DependencyGraph`. [instructions + 1]
        arc_from: See `DependencyGraph`. [arcs]
        delay: Seconds on each arc. [arcs]
        kind: The kind of each instruction. [instructions]
        first: Choices `first[k]` to `first[k + 1]` are those of kind k, from the fastest to the cheapest. [kinds + 1]
        time: Seconds of each choice. [choices]
        cost: Effective cost of each choice, in joules. [choices]
        is_corner: Whether it is on the lower hull. [choices]
    """

    first_arc: Indices
    arc_from: Indices
    delay: Numbers
    kind: Indices
    first: Indices
    time: Numbers
    cost: Numbers
    is_corner: NDArray[np.bool_]


def choice_arrays(problem: Problem) -> ChoiceArrays:
    """The arrays of a problem."""
    choices = [choice for of_kind in problem.choices for choice in of_kind]
    corners = [
        choice in hull for of_kind, hull in zip(problem.choices, problem.hulls, strict=True) for choice in of_kind
    ]
    counts: list[Any] = [len(of_kind) for of_kind in problem.choices]
    return ChoiceArrays(
        first_arc=problem.graph.first_arc,
        arc_from=problem.graph.arc_from,
        delay=problem.arc_delay_seconds,
        kind=problem.kind_of,
        first=np.cumsum([0, *counts]).astype(np.int64),
        time=np.array([choice.time_seconds for choice in choices]),
        cost=np.array([choice.cost_joules for choice in choices]),
        is_corner=np.array(corners, np.bool_),
    )
