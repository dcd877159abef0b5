"""The tests that every `World` passes, as a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from zeus_core.errors import WorldError
from zeus_core.ports import World

RunRanks = Callable[[Callable[[World], Any]], list[Any]]
"""Calls a function with the world of each rank, all at the same time. Returns the results, by rank."""

_ROUNDS = 20  # enough for a fast rank to get ahead of a slow one if it could


class WorldContract:
    """The tests that every implementation of `World` passes.

    Derive a test class and return what runs the ranks from its `run_ranks` fixture; the timeout of the world should be
    short, as one test waits for it:

        from zeus_core.testing.contracts import WorldContract

        class TestMyWorld(WorldContract):
            @pytest.fixture
            def run_ranks(self):
                return lambda rank_main: run_in_three_processes(lambda: rank_main(MyWorld()))

    The functions are module-level functions, so that they can be sent to other processes.
    """

    @pytest.fixture
    def run_ranks(self) -> RunRanks:
        """Runs a function on each rank."""
        raise NotImplementedError(
            "a test class derived from WorldContract has a fixture `run_ranks`; see its docstring"
        )

    def test_ranks_are_numbered_and_know_how_many_they_are(self, run_ranks: RunRanks) -> None:
        """Ranks count from 0, in order."""
        answers = run_ranks(_rank_and_size)
        assert answers == [[rank, len(answers)] for rank in range(len(answers))]

    def test_every_rank_gets_the_values_of_all_ranks_by_rank(self, run_ranks: RunRanks) -> None:
        """Round after round, and none gets the value of another round."""
        answers = run_ranks(_gather_rounds)
        ranks = range(len(answers))
        assert answers == [[[[rank, number] for rank in ranks] for number in range(_ROUNDS)]] * len(answers)

    def test_all_json_types_pass(self, run_ranks: RunRanks) -> None:
        """Unchanged, on every rank."""
        answers = run_ranks(_gather_json)
        assert answers == [[_JSON] * len(answers)] * len(answers)

    def test_a_rank_that_is_missing_is_an_error_for_the_others(self, run_ranks: RunRanks) -> None:
        """Now, and at every later call."""
        answers = run_ranks(_gather_without_the_last)
        if len(answers) == 1:
            pytest.skip("a world of one rank misses none")
        assert answers == [["error", "error"]] * (len(answers) - 1) + [[]]


_JSON = {"text": "é", "numbers": [0, -1, 0.1, 1e300], "true": True, "nothing": None, "empty": {}}


def _rank_and_size(world: World) -> list[int]:
    return [world.rank, world.size]


def _gather_rounds(world: World) -> list[Any]:
    return [world.gather([world.rank, number]) for number in range(_ROUNDS)]


def _gather_json(world: World) -> list[Any]:
    return world.gather(_JSON)


def _gather_without_the_last(world: World) -> list[str]:
    if world.rank == world.size - 1:
        return []
    return [_outcome_of_gathering(world) for _ in range(2)]


def _outcome_of_gathering(world: World) -> str:
    try:
        world.gather(None)
    except WorldError:
        return "error"
    return "values"
