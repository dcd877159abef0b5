"""What the hooks cost, in calls of Python functions: they are the same on every machine, unlike their time.

`benchmarks/callback_overhead.py` measures the time.
"""

import sys
from collections import Counter

import pytest

from zeus_core.training import TrainingEnergy


class Calls(Counter):
    """Counts the calls of Python functions in a block, by name."""

    def __enter__(self):
        sys.setprofile(lambda frame, event, _: self.update([frame.f_code.co_name] * (event == "call")))
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        del self["__exit__"]


@pytest.fixture
def energy(monitor):
    with TrainingEnergy(monitor, quiet=True) as energy:
        yield energy


def test_a_step_takes_few_calls(energy):
    for _ in range(3):
        with Calls() as begin:
            energy.on_step_begin()
        with Calls() as end:
            energy.on_step_end()
        with Calls() as count:
            energy.count(samples=1)
    assert begin.total() <= 9, begin
    assert end.total() <= 6, end
    assert count.total() <= 2, count
