"""Worlds of threads, and of one process."""

import pytest

from tests.contracts.world import WorldContract
from zeus_core.errors import UsageError
from zeus_core.ports.world import SoloWorld
from zeus_core.testing import ThreadWorld


class TestThreadWorld(WorldContract):
    @pytest.fixture(params=[2, 3])
    def run_ranks(self, request):
        def run(rank_main):  # a rank that is missing is waited for, and on a busy machine others may be late
            timeout_seconds = 0.3 if "without_the_last" in rank_main.__name__ else 60.0
            return ThreadWorld.run(request.param, rank_main, timeout_seconds)

        return run


class TestSoloWorld(WorldContract):
    @pytest.fixture
    def run_ranks(self):
        return lambda rank_main: [rank_main(SoloWorld())]


def test_a_thread_world_passes_what_json_passes_and_nothing_else():
    with pytest.raises(TypeError):
        ThreadWorld.run(1, lambda world: world.gather({1, 2}))
    with pytest.raises(UsageError, match="size is 0"):
        ThreadWorld.run(0, lambda world: None)


def test_a_ranks_error_is_not_hidden_by_those_of_waiting_ranks():
    def rank_main(world):
        if world.rank == 1:
            raise ValueError("the reason")
        world.gather(None)

    with pytest.raises(ValueError, match="the reason"):
        ThreadWorld.run(3, rank_main, timeout_seconds=60.0)
