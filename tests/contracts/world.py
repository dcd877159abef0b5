"""The tests that every `World` passes, as a class."""

import pytest

from zeus_core.errors import WorldError
from zeus_core.ports.world import WholeNumbers

_ROUNDS = 20  # enough for a fast rank to get ahead of a slow one if it could


class WorldContract:
    """Derive a test class with a fixture `run_ranks`.

    It calls a function with the world of each rank, all at the same time, and returns the results by rank. The function
    can be sent to other processes. One test waits for the timeout of the world: make that short.
    """

    def test_ranks_are_numbered_and_know_how_many_they_are(self, run_ranks):
        """Ranks count from 0, in order."""
        answers = run_ranks(_rank_and_size)
        assert answers == [[rank, len(answers)] for rank in range(len(answers))]

    def test_every_rank_gets_the_values_of_all_ranks_by_rank(self, run_ranks):
        """Round after round, and none gets the value of another round."""
        answers = run_ranks(_gather_rounds)
        ranks = range(len(answers))
        assert answers == [[[[rank, number] for rank in ranks] for number in range(_ROUNDS)]] * len(answers)

    def test_all_json_types_pass(self, run_ranks):
        """Unchanged, on every rank."""
        answers = run_ranks(_gather_json)
        assert answers == [[_JSON] * len(answers)] * len(answers)

    def test_whole_numbers_of_all_ranks_are_combined_and_long_ones_too(self, run_ranks):
        """Sums and the largest, of lists that differ in length; skipped if the world has no `reduce`."""
        answers = run_ranks(_reduce_rounds)
        if answers[0] is None:
            pytest.skip("this world has no `reduce`")
        size = len(answers)
        sums = [sum(_number(rank, place) for rank in range(place % size, size)) for place in range(_LONGEST)]
        assert answers == [[[sums, [size - 1, -1]], [[], []]] * _ROUNDS] * size

    def test_the_first_rank_alone_gets_values_of_all_ranks(self, run_ranks):
        """Round after round; skipped if the world has no `gather_to_first`."""
        answers = run_ranks(_gather_rounds_to_first)
        if answers[0] is None:
            pytest.skip("this world has no `gather_to_first`")
        of_all = [[[rank, number, "x" * rank] for rank in range(len(answers))] for number in range(_ROUNDS)]
        assert answers == [of_all, *[[None] * _ROUNDS] * (len(answers) - 1)]

    def test_ranks_that_make_different_calls_learn_it_at_once(self, run_ranks):
        """And none gets a value; skipped if the world has no `reduce`."""
        answers = run_ranks(_gather_or_reduce)
        if len(answers) == 1 or answers[0] == "no reduce":
            pytest.skip("this world has no `reduce`, or one rank")
        assert answers == ["error"] * len(answers)

    def test_a_rank_that_is_missing_is_an_error_for_the_others(self, run_ranks):
        """Now, and at every later call."""
        answers = run_ranks(_gather_without_the_last)
        if len(answers) == 1:
            pytest.skip("a world of one rank misses none")
        assert answers == [["error", "error"]] * (len(answers) - 1) + [[]]

    def test_a_rank_that_is_missing_in_a_sum_is_an_error_for_the_others(self, run_ranks):
        """Now, and at every later call; skipped if the world has no `reduce`."""
        answers = run_ranks(_reduce_without_the_last)
        if len(answers) == 1 or answers[-1] is None:
            pytest.skip("this world has no `reduce`, or one rank")
        assert answers == [["error", "error"]] * (len(answers) - 1) + [[]]


_LONGEST = 300  # numbers, more than one message has

_JSON = {"text": "é", "numbers": [0, -1, 0.1, 1e300], "true": True, "nothing": None, "empty": {}}


def _rank_and_size(world):
    return [world.rank, world.size]


def _gather_rounds(world):
    return [world.gather([world.rank, number]) for number in range(_ROUNDS)]


def _gather_json(world):
    return world.gather(_JSON)


def _number(rank, place):
    return (2**61 // (rank + 1) - place) * (-1 if place % 2 else 1)


def _reduce_rounds(world):
    reduce = getattr(world, "reduce", None)
    if reduce is None:
        return None
    # Rank 0 has every size-th number, and the last rank all.
    sums = [_number(world.rank, place) if place % world.size <= world.rank else 0 for place in range(_LONGEST)]
    own = (WholeNumbers(sums, [world.rank, -world.rank][: world.rank + 1]), WholeNumbers())
    return [[list(part) for part in reduce(numbers)] for _ in range(_ROUNDS) for numbers in own]


def _gather_rounds_to_first(world):
    gather = getattr(world, "gather_to_first", None)
    return gather and [gather([world.rank, number, "x" * world.rank]) for number in range(_ROUNDS)]


def _gather_or_reduce(world):
    reduce = getattr(world, "reduce", None)
    if reduce is None:
        return "no reduce"
    return _outcome((lambda: world.gather([0] * 1000)) if world.rank == 0 else (lambda: reduce(WholeNumbers([1]))))


def _gather_without_the_last(world):
    if world.rank == world.size - 1:
        return []
    return [_outcome(lambda: world.gather(None)) for _ in range(2)]


def _reduce_without_the_last(world):
    reduce = getattr(world, "reduce", None)
    if reduce is None or world.rank == world.size - 1:
        return None if reduce is None else []
    return [_outcome(lambda: reduce(WholeNumbers([1]))) for _ in range(2)]


def _outcome(call):
    try:
        call()
    except WorldError:
        return "error"
    return "values"
