"""Ranks that search together agree and restore everything, in any order of events."""

import itertools
import logging
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.search_ranks import EVALUATION, ORIGINAL_WATTS, WORK, Whim, make_rank, run
from zeus_core.errors import DriverFaultError, PermissionDeniedError

STEP = ["step begin", "step end"]
COMMON = [
    *[STEP * count for count in (1, 2, 3, 5, 8, 13)],
    ["step begin", *STEP],
    *[[happening] for happening in ("train begin", "epoch begin", "epoch end", "train end")],
]
OWN = ["pause", "resume", "interference", "evaluate", "work"]
FALLIBLE = [
    "read_power_limit_watts",
    "read_power_limit_range_watts",
    "read_enforced_power_limit_watts",
    "set_power_limit",
    "read_energy_counter_joules",
    "read_power_watts",
]
ERRORS = [DriverFaultError("driver"), RuntimeError("a bug"), PermissionDeniedError("rights")]


@dataclass
class Story:
    """Events of the ranks: those common to all, and those of each alone."""

    size: int
    common: list
    own: list  # rank, where in the common happenings, happening
    faults: list  # rank, where, call, error, times
    denied: set

    def of(self, rank):
        """The happenings of one rank, with where in the common ones they are."""
        for position, happening in enumerate(self.common):
            yield position, happening
            yield from ((position, event) for other, at, event in self.own if (other, at) == (rank, position))


@st.composite
def stories(draw):
    size = draw(st.integers(2, 3))
    common = list(itertools.chain(*draw(st.lists(st.sampled_from(COMMON), min_size=1, max_size=12))))
    somewhere = (st.integers(0, size - 1), st.integers(0, len(common) - 1))
    own = draw(st.lists(st.tuples(*somewhere, st.sampled_from(OWN)), max_size=12))
    calls, errors = st.sampled_from(FALLIBLE), st.sampled_from(ERRORS)
    faults = draw(st.lists(st.tuples(*somewhere, calls, errors, st.sampled_from([None, 1, 3])), max_size=2))
    denied = draw(st.one_of(st.just(set()), st.sets(st.integers(0, size - 1), max_size=1)))
    return Story(size, common, own, faults, denied)


def happen(rank, happening):
    optimizer = rank.optimizer
    {
        "train begin": optimizer.on_train_begin,
        "epoch begin": optimizer.on_epoch_begin,
        "step begin": optimizer.on_step_begin,
        "step end": optimizer.on_step_end,
        "epoch end": optimizer.on_epoch_end,
        "train end": optimizer.on_train_end,
        "pause": optimizer.on_pause,
        "resume": optimizer.on_resume,
        "interference": optimizer.on_interference,
        "evaluate": lambda: optimizer.on_evaluate(0.5),
        "work": lambda: rank.gpu.execute(EVALUATION),
    }[happening]()
    rank.gpu.execute(WORK)


@settings(max_examples=40, deadline=None)
@given(story=stories())
def test_ranks_of_equal_steps_always_agree_and_put_everything_back(story):
    said = []
    handler = logging.Handler()
    handler.emit = said.append

    def rank_main(world):
        rank = make_rank(world, Whim(), grants_control=world.rank not in story.denied)
        for position, happening in story.of(world.rank):
            for other, at, call, error, times in story.faults:
                if (other, at) == (world.rank, position):
                    rank.faulty.fail(call, error, times)
            happen(rank, happening)
            assert rank.gpu.read_power_limit_watts() <= ORIGINAL_WATTS
        rank.optimizer.on_train_end()
        rank.faulty.heal()
        return rank

    logger = logging.getLogger("zeus_core.optimizer")
    logger.addHandler(handler)
    try:
        run(story.size, rank_main)
    finally:
        logger.removeHandler(handler)
    stopped = [record for record in said if "is off for the rest of this run" in record.getMessage()]
    assert len(stopped) <= story.size
    assert not any(
        "disagree on the current phase" in record.getMessage() or "in time" in record.getMessage() for record in said
    )
