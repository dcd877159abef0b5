"""Conditions on the numbers of a run, such as `energy_per_token_j > 1.05 * baseline`. Pure.

A condition compares a number of the run with a bound. Both are intervals: the condition holds if it holds for all
numbers in them, and is open if it holds for some.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from zeus_core.errors import UsageError
from zeus_core.report.run_lines import Runs, differences
from zeus_core.report.run_metrics import Quantity, metrics_of, named
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import number_text
from zeus_core.validate import shown

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d\d?)?"
_CONDITION = re.compile(
    rf"(?P<name>[^\s<>=*]+)\s*(?P<sign>[<>]=?)\s*(?:(?P<factor>{_NUMBER})\s*\*\s*)?(?P<bound>baseline|{_NUMBER})"
)
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition:
    """A comparison of a number of a run, `NAME OP [FACTOR *] (baseline or NUMBER)`.

    Args:
        text: The condition. `baseline` is the number with the same name in the baseline.

    Raises:
        UsageError: It cannot be read.
    """

    def __init__(self, text: str) -> None:
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"--fail-if is {shown(text)}, which is not a name, one of < <= > >=, and a number or baseline; an "
                "example: 'energy_per_token_j > 1.05 * baseline'. Give the option again for another condition"
            )
        self.text: str = text.strip()
        """The condition as it was given."""
        self._match = match

    def judge(self, run: Mapping[str, Quantity], baseline: Mapping[str, Quantity] | None) -> tuple[bool | None, str]:
        """Return whether the condition holds, None if the intervals leave that open, and its two sides for people.

        Args:
            run: The numbers of the run, by name.
            baseline: The numbers of the baseline; None without one.

        Raises:
            UsageError: It names a number that is not known, or a baseline that is not given.
        """
        name, sign, factor, bound = self._match.group("name", "sign", "factor", "bound")
        if bound != "baseline":
            ends = [float(bound)]
        elif baseline is None:
            raise UsageError(f"the condition {self.text!r} names a baseline; give its run by --baseline RUN")
        else:
            ends = list(named(baseline, name)[1:])
        bounds, values = sorted(float(factor or 1) * end for end in ends), named(run, name)[1:]
        outcomes = {_SIGNS[sign](value, bound) for value in values for bound in bounds}
        sides = (" to ".join(number_text(end, 5) for end in dict.fromkeys(side)) for side in (values, bounds))
        return outcomes.pop() if len(outcomes) == 1 else None, " against ".join(sides)


def judged(conditions: Sequence[Condition], runs: Runs, baseline: RunRecord | None) -> list[tuple[str, bool]]:
    """Return a sentence for each run and condition, and whether it is bad news.

    Args:
        conditions: The conditions.
        runs: The runs with their names.
        baseline: The run to compare with; None for none.

    Raises:
        UsageError: A number is not known, or a baseline is of other GPUs or other work.
    """
    against = None if baseline is None else metrics_of(baseline)
    notes = []
    for name, run in runs if conditions else ():
        if baseline is not None and (differing := differences(run, baseline)):
            raise UsageError(
                f"{name} and its baseline differ in {'; '.join(differing)}: give a baseline of the same GPUs and work"
            )
        for condition in conditions:
            holds, sides = condition.judge(metrics_of(run), against)
            words = {True: "FAILED", False: "passed", None: "passed, as the intervals leave it open"}[holds]
            notes.append((f"{name}: {condition.text}: {words}: {sides}", holds is True))
    return notes
