"""Which steps of optimizers are steps of their program: the rule, in one place.

An optimizer's *turn* is its steps in a row. In a turn of 10 steps or more it trains by itself, and each step counts, as
in the phases of a fine-tuning, an ensemble or spinning-up's PPO. Optimizers with shorter turns are one step together if
one of them comes back, that of the optimizer which steps most seldom: a GAN whose critic steps five times has one for
all six. Where none comes back, each step counts.

All ranks find the same, as nothing but the order of the steps matters.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from weakref import ref

_LONG_TURN = 10  # steps; critics of GANs step up to 5 times (arXiv:1701.07875)
_MANY = 4096  # optimizers within short turns: made for inner loops, most of them are gone


class OptimizerTurns:
    """Counts the steps of a program in those of its optimizers.

    Attributes:
        leader: The optimizer whose steps end those of the program at present; None before any.
        words: How a step was counted, where optimizers have stepped in turn; None where each step is one.
    """

    def __init__(self) -> None:
        self.leader: ref[Any] | None = None
        self.words: str | None = None
        self._counted = 0  # steps of the program, before the short turns
        self._before_turn = 0  # before the turn under way
        self._latest: ref[Any] | None = None
        self._row = 0  # steps of the turn under way
        # Of the short turns since the latest long one, or of the long one under way.
        self._steps: Counter[ref[Any]] = Counter()
        self._turns: Counter[ref[Any]] = Counter()
        self._all_steps = 0
        self._comes_back = False

    @property
    def steps(self) -> int:
        """The steps of the program so far."""
        in_turn = self._steps[self.leader] if self._comes_back and self.leader is not None else self._all_steps
        return self._counted + in_turn

    def add(self, optimizer: Any) -> bool:
        """Add a step of an optimizer. Return whether it ends one of the program."""
        own = ref(optimizer)
        if own != self._latest:
            self._begin_turn(own)
        self._row += 1
        self._steps[own] += 1
        self._all_steps += 1
        if self._row == _LONG_TURN:
            self._forget_turns(self._before_turn)
            self._steps[own], self._turns[own], self._all_steps, self.leader = _LONG_TURN, 1, _LONG_TURN, own
        elif own != self.leader:
            self._challenge(own)
        if self._comes_back and self.leader is not None:
            of_many = f"that of {len(self._steps)} optimizers which steps most seldom"
            self.words = f"one of {type(self.leader()).__name__}, {of_many}"
        return own == self.leader

    def _begin_turn(self, own: ref[Any]) -> None:
        leader_is_gone = self._comes_back and self.leader is not None and self.leader() is None
        if self._row >= _LONG_TURN or leader_is_gone:
            self._forget_turns(self.steps)
        if len(self._steps) > _MANY:
            for each in [each for each in self._steps if each() is None and each != self.leader]:
                del self._steps[each], self._turns[each]
        self._latest, self._row, self._before_turn = own, 0, self.steps
        self._turns[own] += 1
        self._comes_back = self._comes_back or self._turns[own] > 1

    def _challenge(self, own: ref[Any]) -> None:
        """Make an optimizer the leader if it comes back, and steps more seldom or the leader has not come back."""
        leader = self.leader
        if leader is None or leader not in self._turns:
            leads = True
        elif self._turns[own] > 1:
            # Of two that step in turn, one is ahead by a step at times.
            leads = self._turns[leader] == 1 or self._steps[own] + 1 < self._steps[leader]
        else:
            leads = not self._comes_back and self._row > 1
        if leads:
            self.leader = own

    def _forget_turns(self, counted: int) -> None:
        self._counted, self._all_steps, self._comes_back, self.leader = counted, 0, False, None
        self._steps.clear()
        self._turns.clear()
