"""The clocks at which ranks wait, where the power of waiting was measured by the clock.

A rank waits before its first instruction, between two, and after the last. A wait without a clock of its own has that
of what follows. A rank may also wait at the clock of what went before, or at the one at which waiting takes least:
that is a switch more, or two. They fit into the wait, so they delay nothing. A rank that waits at the same clock at the
end of an iteration and at the beginning of the next keeps it in between.

`PipelineProblem.blocking_power_watts` is the lowest power of waiting, so the bounds of the planner hold for all clocks
of waits. Here is what waiting takes above that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.dependencies import ROUNDING
from zeus_core.pipeline.planner.execution import Execution, SwitchPrice, execute
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem, WaitingPower

WaitingClocks = tuple[tuple[int | None, ...], ...]
"""For each rank the clock of the wait before each instruction, and after the last; None for that of what follows."""


class _Switch(NamedTuple):
    at_seconds: float
    before_mhz: int | None
    after_mhz: int | None


@dataclass(frozen=True)
class _RankWaits:
    """The waits of one rank, one more than it has instructions.

    Attributes:
        power: That of waiting.
        stage: One of the rank's stages.
        gpus: Its GPUs.
        clocks_mhz: The clock during each instruction.
        begin_seconds: When each wait begins.
        end_seconds: When each ends; the last one at the end of the iteration, or until when the rank waits anyway.
        price: That of a switch.
    """

    power: WaitingPower
    stage: int
    gpus: int
    clocks_mhz: Sequence[int | None]
    begin_seconds: Sequence[float]
    end_seconds: Sequence[float]
    price: SwitchPrice

    def watts(self, clock_mhz: int | None) -> float:
        """Return the power of waiting at a clock above the lowest, of all GPUs."""
        return self.power.watts(self.stage, clock_mhz)

    def switches(self, place: int, at_mhz: int | None, is_kept_over: bool) -> list[_Switch]:
        """Return the switches in a wait at a clock.

        Args:
            place: The number of the wait.
            at_mhz: The clock; None for that of what follows.
            is_kept_over: Whether the rank waits at this clock at the end of an iteration and at the beginning.
        """
        last = len(self.clocks_mhz)
        before = at_mhz if place == 0 and is_kept_over else self.clocks_mhz[place - 1]
        after = at_mhz if place == last and is_kept_over else self.clocks_mhz[place if place < last else -1]
        own = after if at_mhz is None else at_mhz
        begin = self.begin_seconds[place]
        end = max(begin, self.end_seconds[place] - self.price.seconds)
        switches = _Switch(begin, before, own), _Switch(end, own, after)
        return [switch for switch in switches if switch.before_mhz != switch.after_mhz]

    def joules(self, place: int, at_mhz: int | None, is_kept_over: bool = False) -> float:
        """Return what a wait at a clock takes above waiting at the lowest power, its switches included."""
        switches = self.switches(place, at_mhz, is_kept_over)
        own = at_mhz if at_mhz is not None else self.clocks_mhz[min(place, len(self.clocks_mhz) - 1)]
        joules = self.watts(own) * (self.end_seconds[place] - self.begin_seconds[place])
        for _, before, after in switches:  # either power can be drawn in a switch
            joules += self.price.seconds * (max(self.watts(before), self.watts(after)) - self.watts(own))
        return joules + len(switches) * self.price.joules * self.gpus

    def all_switches(self, waiting: Sequence[int | None]) -> list[_Switch]:
        """Return the switches of an iteration with these clocks of waits."""
        is_kept_over = waiting[0] is not None and waiting[0] == waiting[-1]
        return [
            switch
            for place, at_mhz in enumerate(waiting)
            for switch in self.switches(place, at_mhz, is_kept_over and place in (0, len(waiting) - 1))
        ]

    def shortest_dwell(self, waiting: Sequence[int | None], time_seconds: float) -> float:
        """Return the shortest time between two switches; infinite without two."""
        times = [switch.at_seconds for switch in self.all_switches(waiting)]
        if len(times) < 2:
            return math.inf
        return min(times[0] + time_seconds - times[-1], *(later - sooner for sooner, later in pairwise(times)))

    def fits(self, place: int, at_mhz: int, is_kept_over: bool) -> bool:
        """Return whether the switches of a wait at a clock fit into it."""
        seconds = self.end_seconds[place] - self.begin_seconds[place]
        needed = len(self.switches(place, at_mhz, is_kept_over)) * self.price.seconds
        return seconds > ROUNDING * self.end_seconds[-1] and needed <= seconds

    def chosen(self) -> list[int | None]:
        """Return the clocks of waits that save energy: those that save most first, as far as they keep the dwell."""
        last = len(self.clocks_mhz)
        lowest_mhz = self.power.cheapest_clock_mhz(self.stage)
        asked = [({place: lowest_mhz}, False) for place in range(last + 1)]
        asked += [({place: clock}, False) for place in range(last + 1) if (clock := self.clocks_mhz[place - 1])]
        asked.append(({0: lowest_mhz, last: lowest_mhz}, True))
        offers = []
        for places, is_kept_over in asked:
            if all(self.fits(place, clock, is_kept_over) for place, clock in places.items()):
                joules = sum(self.joules(place, clock, is_kept_over) for place, clock in places.items())
                saved = sum(self.joules(place, None) for place in places) - joules
                if saved > ROUNDING * abs(joules):
                    offers.append((saved, places))
        waiting: list[int | None] = [None] * (last + 1)
        for _, places in sorted(offers, key=lambda offer: -offer[0]):
            changed = [places.get(place, clock) for place, clock in enumerate(waiting)]
            is_free = all(waiting[place] is None for place in places)
            if is_free and self.shortest_dwell(changed, self.end_seconds[-1]) >= self.price.dwell_seconds:
                waiting = changed
        return waiting


def execute_waits(
    problem: PipelineProblem, chosen: Sequence[CostedOption], price: SwitchPrice, waiting: WaitingClocks = ()
) -> Execution:
    """Predict an iteration with the clocks of waits; see `execute`.

    Args:
        problem: The instructions.
        chosen: The option of each instruction, in the order of `problem.graph`. [instructions]
        price: That of a switch; its dwell does not matter.
        waiting: The clocks of waits; empty for those of what follows.
    """
    result = execute(problem, chosen, price)
    if not WaitingPower.from_profile(problem.profile).measured:
        return result
    joules, switches, dwell = 0.0, 0, math.inf
    for number, rank in enumerate(_ranks(problem, chosen, result, price, result.time_seconds)):
        clocks = waiting[number] if waiting else (None,) * len(rank.begin_seconds)
        is_kept_over = clocks[0] is not None and clocks[0] == clocks[-1]
        ends = (0, len(clocks) - 1)
        joules += sum(rank.joules(place, clock, is_kept_over and place in ends) for place, clock in enumerate(clocks))
        switches += len(rank.all_switches(clocks))
        dwell = min(dwell, rank.shortest_dwell(clocks, result.time_seconds))
    joules -= price.joules * float(problem.rank_gpus[problem.graph.rank[result.is_switch]].sum())  # counted in `result`
    return replace(
        result,
        energy_joules=result.energy_joules + joules,
        waiting_switches=switches - int(result.is_switch.sum()),
        shortest_dwell_seconds=dwell,
    )


def choose_waiting_clocks(
    problem: PipelineProblem, chosen: Sequence[CostedOption], price: SwitchPrice, until_seconds: float | None = None
) -> WaitingClocks:
    """Return the clocks of waits that save energy.

    Args:
        problem: The instructions.
        chosen: The option of each instruction, in the order of `problem.graph`. [instructions]
        price: That of a switch.
        until_seconds: Until when all ranks wait anyway; the end of the iteration if None.

    Returns:
        The clocks; empty if the power of waiting was not measured by the clock.
    """
    if not WaitingPower.from_profile(problem.profile).measured:
        return ()
    result = execute(problem, chosen, price)
    end_seconds = max(result.time_seconds, until_seconds or 0.0)
    return tuple(tuple(rank.chosen()) for rank in _ranks(problem, chosen, result, price, end_seconds))


def watts_after_work(
    problem: PipelineProblem, plan_clocks: Sequence[Sequence[int | None]], waiting: WaitingClocks
) -> float:
    """Return the power of all GPUs after the last instruction of each rank, with that of their nodes.

    Args:
        problem: The instructions.
        plan_clocks: The clock of each instruction of each rank.
        waiting: The clocks of waits; empty for those of what follows.
    """
    power, watts = WaitingPower.from_profile(problem.profile), problem.blocking_power_watts
    for rank, clocks in enumerate(plan_clocks):
        after = waiting[rank][-1] if waiting else None
        if after is None:
            after = next((clock for clock in reversed(clocks) if clock is not None), None)
        watts += power.watts(problem.schedule.ranks[rank][0].stage, after)
    return watts


def waiting_seconds(problem: PipelineProblem, execution: Execution) -> list[list[float]]:
    """Return how long each rank waits before each instruction, and after the last until the end of the iteration."""
    ends = execution.start_seconds + execution.duration_seconds
    waits = []
    for number in range(len(problem.schedule.ranks)):
        members = (problem.graph.rank == number).nonzero()[0]
        begins = np.concatenate([[0.0], ends[members]])
        waits.append((np.append(execution.start_seconds[members], execution.time_seconds) - begins).tolist())
    return waits


def _ranks(
    problem: PipelineProblem, chosen: Sequence[CostedOption], result: Execution, price: SwitchPrice, end_seconds: float
) -> Iterator[_RankWaits]:
    power, ends = WaitingPower.from_profile(problem.profile), result.start_seconds + result.duration_seconds
    for number, order in enumerate(problem.schedule.ranks):
        members = (problem.graph.rank == number).nonzero()[0].tolist()
        clocks = [chosen[place].clock_mhz for place in members]
        held = next((clock for clock in reversed(clocks) if clock is not None), None)
        for place, clock in enumerate(clocks):
            held = clocks[place] = held if clock is None else clock
        yield _RankWaits(
            power=power,
            stage=order[0].stage,
            gpus=problem.profile.gpus[order[0].stage],
            clocks_mhz=clocks,
            begin_seconds=[0.0, *ends[members].tolist()],
            end_seconds=[*result.start_seconds[members].tolist(), end_seconds],
            price=price,
        )
