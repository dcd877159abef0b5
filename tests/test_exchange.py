"""Exchanges between ranks: a value or a fault from each, and all act alike."""

import gc
import weakref
from enum import Enum
from typing import NamedTuple

import pytest

from zeus_core.errors import DriverFaultError, WorldError
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import SoloWorld, WholeNumbers
from zeus_core.testing import ThreadWorld


class Phase(Enum):
    FIRST = "first"
    SECOND = "second"


def failing(reason="no GPU"):
    raise DriverFaultError(reason)


def outcome(call):
    """Return the result of a call, or the error it raised, as text."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_values_come_by_rank_and_decisions_from_the_first():
    def rank_main(world):
        exchange = Exchange(world)
        return exchange.gather(lambda: 10 * world.rank, Phase.FIRST), exchange.decide(lambda: f"rank {world.rank}")

    assert ThreadWorld.run(3, rank_main) == [([0, 10, 20], "rank 0")] * 3


def test_a_fault_on_one_rank_fails_all_but_not_the_next_exchange():
    def rank_main(world):
        exchange = Exchange(world)
        first = outcome(lambda: exchange.gather(lambda: failing() if world.rank == 1 else None))
        return first, exchange.gather(lambda: world.rank)

    (first, second) = ThreadWorld.run(2, rank_main)
    assert first == ("WorldError: rank 1: no GPU", [0, 1])
    assert second == ("DriverFaultError: no GPU", [0, 1])


def test_a_bug_is_reported_with_its_kind():
    def rank_main(world):
        return outcome(lambda: Exchange(world).gather(lambda: {}["key"] if world.rank == 1 else None))

    assert ThreadWorld.run(2, rank_main) == ["WorldError: rank 1: KeyError('key')", "KeyError: 'key'"]


def test_a_failed_rank_does_nothing_more_and_reports_at_every_exchange():
    def rank_main(world):
        done, faults = [], []
        exchange = Exchange(world, faults.append)
        if world.rank == 1:
            assert exchange.attempt(failing) is None
            assert [str(fault) for fault in faults] == ["no GPU"], "before any other rank is waited for"
        exchange.attempt(lambda: done.append("effect"))
        answers = [outcome(lambda: exchange.gather(lambda: done.append("told"))) for _ in range(2)]
        return done, answers

    (first, second) = ThreadWorld.run(2, rank_main)
    assert first == (["effect", "told", "told"], ["WorldError: rank 1: no GPU"] * 2)
    assert second == ([], ["WorldError: no GPU"] * 2)


def test_in_a_job_of_one_process_a_failure_is_raised_at_once():
    faults = []
    with pytest.raises(DriverFaultError):
        Exchange(SoloWorld(), faults.append).attempt(failing)
    assert len(faults) == 1


class GatheringWorld:
    """The world of a user's own, which can only gather."""

    def __init__(self, world):
        self.rank, self.size, self.gather = world.rank, world.size, world.gather


def in_any_world(world):
    """Return what all that is not `gather` returns."""
    exchange, long = Exchange(world), "a plan " * 1000
    return (
        exchange.reduce(lambda: WholeNumbers([2**40, world.rank], [-world.rank]), Phase.FIRST),
        exchange.longest(lambda: 0.1 * world.rank),
        exchange.gather_first(lambda: [world.rank, "é"], Phase.FIRST),
        exchange.decide(lambda: [world.rank, long, 0.1, None, {"1": True}], Phase.SECOND),
        exchange.conclude_of(Answer, lambda: Answer(world.rank), Answer, lambda answers: answers[-1]),
        exchange.make(lambda: world.rank),
    )


@pytest.mark.parametrize("kind", [lambda world: world, GatheringWorld])
def test_a_world_that_only_gathers_gives_the_same_answers(kind):
    answers = ThreadWorld.run(3, lambda world: in_any_world(kind(world)))
    decision = [0, "a plan " * 1000, 0.1, None, {"1": True}]
    gathered = [[0, "é"], [1, "é"], [2, "é"]]
    total = WholeNumbers([3 * 2**40, 3], [0])
    assert answers == [(total, 0.2, gathered if rank == 0 else None, decision, Answer(2), rank) for rank in range(3)]


def test_one_process_reduces_and_concludes_alone():
    total, longest, gathered, decision, conclusion, _ = in_any_world(SoloWorld())
    assert (total, longest, gathered) == (WholeNumbers([2**40, 0], [0]), 0.0, [[0, "é"]])
    assert (decision[0], conclusion) == (0, Answer(0))


@pytest.mark.parametrize("kind", [lambda world: world, GatheringWorld])
def test_a_fault_in_a_conclusion_fails_all_ranks_alike(kind):
    def rank_main(world):
        exchange = Exchange(kind(world))
        told = outcome(lambda: exchange.conclude_of(int, lambda: failing() if world.rank == 1 else 1, int, sum))
        concluded = outcome(lambda: exchange.conclude_of(int, lambda: 1, int, lambda values: failing("no plan")))
        phases = outcome(lambda: exchange.reduce(lambda: WholeNumbers([1]), list(Phase)[world.rank]))
        return told, concluded, phases.split(";")[0], exchange.conclude_of(int, lambda: 1, int, sum)

    out_of_step = "WorldError: the ranks disagree on the current phase: rank 0 is at 'first' and rank 1 at 'second'"
    assert ThreadWorld.run(2, rank_main) == [
        ("WorldError: rank 1: no GPU", "DriverFaultError: no plan", out_of_step, 2),
        ("DriverFaultError: no GPU", "WorldError: rank 0: no plan", out_of_step, 2),
    ]


class Batch:
    """Stands for the tensors of a training step."""


@pytest.mark.parametrize("call", ["attempt", "gather"])
def test_a_fault_does_not_keep_the_variables_of_the_training_step_alive(call):
    exchange = Exchange(SoloWorld())

    def step():
        batch = Batch()
        try:
            getattr(exchange, call)(failing)
        except DriverFaultError as error:
            exchange.fail(error)
        return weakref.ref(batch)

    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()


def test_ranks_in_different_phases_are_told_so():
    def rank_main(world):
        return outcome(lambda: Exchange(world).gather(lambda: 0, list(Phase)[world.rank]))

    (first, second) = ThreadWorld.run(2, rank_main)
    assert first == second
    assert "rank 0 is at 'first' and rank 1 at 'second'" in first


class SilentWorld:
    """The other rank never answers."""

    rank, size = 0, 2

    def __init__(self):
        self.calls = 0

    def gather(self, value):
        self.calls += 1
        raise WorldError("a rank did not answer in time")


def test_no_rank_is_waited_for_twice_until_there_are_others():
    world = SilentWorld()
    exchange = Exchange(world)
    for _ in range(3):
        with pytest.raises(WorldError, match="did not answer"):
            exchange.gather(lambda: 0)
    assert (world.calls, exchange.is_cut_off) == (1, True)
    exchange.use_world(SoloWorld())
    assert exchange.gather(lambda: 0) == [0]


def made_on_all(world, fault_of):
    made, unmade = [], []

    def make():
        if world.rank in fault_of:
            failing(fault_of[world.rank])
        made.append(world.rank)
        return world.rank

    answer = outcome(lambda: Exchange(world).make(make, unmade.append))
    assert unmade == (made if fault_of else [])
    return answer


NO_GPU, NO_RIGHT = "DriverFaultError: no GPU", "DriverFaultError: no right"


@pytest.mark.parametrize(
    ("fault_of", "answers"),
    [
        ({}, [0, 1, 2]),
        ({1: "no GPU"}, ["WorldError: rank 1: no GPU", NO_GPU, "WorldError: rank 1: no GPU"]),
        ({0: "no GPU", 2: "no GPU"}, [NO_GPU, "WorldError: rank 0, 2: no GPU", NO_GPU]),
        ({0: "no GPU", 2: "no right"}, [NO_GPU, "WorldError: rank 0: no GPU; rank 2: no right", NO_RIGHT]),
        ({0: "no GPU", 1: "no GPU", 2: "no GPU"}, [NO_GPU] * 3),
    ],
)
def test_something_is_made_on_all_ranks_or_on_none(fault_of, answers):
    assert ThreadWorld.run(3, lambda world: made_on_all(world, fault_of)) == answers


class Answer(NamedTuple):
    """A value with a form in JSON."""

    setting: int
    reason: str | None = None


def test_values_of_a_class_cross_ranks_and_are_unchanged_in_one_process():
    def rank_main(world):
        exchange = Exchange(world)
        told = exchange.gather_of(Answer, lambda: Answer(100 + world.rank), Phase.FIRST)
        return told, exchange.decide_of(Answer, lambda: Answer(world.rank, "chosen"), Phase.SECOND)

    assert ThreadWorld.run(2, rank_main) == [([Answer(100), Answer(101)], Answer(0, "chosen"))] * 2
    own = object()
    alone = Exchange(SoloWorld())
    assert alone.gather_of(object, lambda: own) == [own]
    assert alone.decide_of(object, lambda: own) is own


def test_a_fault_in_a_single_process_is_reported_at_every_class_exchange():
    faults = []
    exchange = Exchange(SoloWorld(), faults.append)
    with pytest.raises(DriverFaultError, match="no GPU"):
        exchange.gather_of(Answer, failing)
    assert len(faults) == 1
    exchange.fail(DriverFaultError("it hangs"))
    with pytest.raises(WorldError, match="it hangs"):
        exchange.gather_of(Answer, lambda: Answer(1))
