"""Conditions on the numbers of a run, such as `energy_per_token_j > 1.05 * baseline`. Pure.

A condition is read by Python's parser, and evaluated here: names, numbers, + - * /, comparisons, `and`, `or`, and no
more. Every number is an interval. A comparison holds if it holds for all numbers in the intervals; it is open if it
holds for some of them.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.report.run_metrics import Quantity, named
from zeus_core.units import number_text
from zeus_core.validate import shown

_BASELINE = "baseline"
_EXAMPLE = "energy_per_token_j > 1.05 * baseline"
_MAX_CHARACTERS = 1000  # a condition is a line; Python's parser takes as long as its text is deep

_ARITHMETIC: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class _Interval(NamedTuple):
    low: float
    high: float


_ANYTHING = _Interval(-math.inf, math.inf)


class Verdict(NamedTuple):
    """The judgement of a condition.

    Attributes:
        holds: Whether it holds; None if the intervals leave that open.
        text: The comparisons with their numbers, for people.
    """

    holds: bool | None
    text: str


def check_condition(text: str) -> None:
    """Check the form of a condition, before any run is read.

    Raises:
        UsageError: It cannot be read.
    """
    _parsed(text)


def judge(text: str, run: Mapping[str, Quantity], baseline: Mapping[str, Quantity] | None) -> Verdict:
    """Judge a condition.

    Args:
        text: The condition. `baseline` alone is the number of the baseline that has the name used in the same
            comparison; `baseline.NAME` is any other.
        run: The numbers of the run, by name.
        baseline: Those of the baseline; None without one.

    Raises:
        UsageError: The condition cannot be read, or names a number that is not known.
    """
    return _Judge(text, run, baseline).verdict()


class _Judge:
    def __init__(self, text: str, run: Mapping[str, Quantity], baseline: Mapping[str, Quantity] | None) -> None:
        self._text = text
        self._run = run
        self._baseline = baseline
        self._compared: list[tuple[str, str]] = []

    def verdict(self) -> Verdict:
        holds = self._holds(_parsed(self._text))
        if len(self._compared) == 1:
            return Verdict(holds, self._compared[0][1])
        return Verdict(holds, "; ".join(f"{text}: {numbers}" for text, numbers in self._compared))

    def _holds(self, node: ast.expr) -> bool | None:
        if isinstance(node, ast.BoolOp):
            parts = [self._holds(value) for value in node.values]
            decisive = isinstance(node.op, ast.Or)
            return decisive if decisive in parts else None if None in parts else not decisive
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            compare = _COMPARISONS[type(node.ops[0])]
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - {_BASELINE}
            left, right = (self._interval(side, names) for side in (node.left, node.comparators[0]))
            self._compared.append((ast.unparse(node), f"{_shown(left)} against {_shown(right)}"))
            outcomes = {compare(one, other) for one in left for other in right}
            return outcomes.pop() if len(outcomes) == 1 else None
        raise _unreadable(self._text, f"{ast.unparse(node)!r} is no comparison with <, <=, > or >=")

    def _interval(self, node: ast.expr, names: set[str]) -> _Interval:
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and abs(value) < 1e300:
                return _Interval(float(value), float(value))
            case ast.UnaryOp(op=ast.USub()):
                low, high = self._interval(node.operand, names)
                return _Interval(-high, -low)
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                sides = self._interval(node.left, names), self._interval(node.right, names)
                return _combined(_ARITHMETIC[type(node.op)], *sides)
            case ast.Name(id=name) if name == _BASELINE:
                return self._of_baseline(names)
            case ast.Name(id=name):
                return _ends(named(self._run, name))
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == _BASELINE:
                return _ends(named(self._known_baseline(), attribute))
        raise _unreadable(self._text, f"{ast.unparse(node)!r} is neither a name nor a number, nor + - * / of these")

    def _of_baseline(self, names: set[str]) -> _Interval:
        if len(names) != 1:
            raise _unreadable(self._text, "beside `baseline`, a comparison names one number; else write baseline.NAME")
        return _ends(named(self._known_baseline(), next(iter(names))))

    def _known_baseline(self) -> Mapping[str, Quantity]:
        if self._baseline is None:
            raise UsageError(f"the condition {self._text!r} names a baseline; give its run by --baseline RUN")
        return self._baseline


def _parsed(text: str) -> ast.expr:
    if len(text) > _MAX_CHARACTERS:
        raise _unreadable(text, f"it is longer than {_MAX_CHARACTERS} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(text, str(error) or type(error).__name__) from None


def _unreadable(text: str, reason: str) -> UsageError:
    return UsageError(f"--fail-if is {shown(text)}, which cannot be read: {reason}. An example: {_EXAMPLE!r}")


def _ends(quantity: Quantity) -> _Interval:
    return _Interval(quantity.low, quantity.high)


def _combined(combine: Callable[[float, float], float], left: _Interval, right: _Interval) -> _Interval:
    """Return the interval of all results."""
    if combine is operator.truediv and right.low <= 0 <= right.high:
        return _ANYTHING
    results = [combine(one, other) for one in left for other in right]
    return _ANYTHING if any(map(math.isnan, results)) else _Interval(min(results), max(results))


def _shown(interval: _Interval) -> str:
    return " to ".join(number_text(end, 5) for end in dict.fromkeys(interval))
