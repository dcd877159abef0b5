"""What the hooks cost, in calls of Python functions: they are the same on every machine, unlike their time.

`benchmarks/callback_overhead.py` measures the time.
"""

import gc
import json
import sys
from collections import Counter

import pytest

from zeus_core.device import Work
from zeus_core.electricity import ConstantSignal, Electricity
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.search import GridSearch
from zeus_core.training import TrainingEnergy

WAITS = {"begin_within"}  # for the thread of a GPU, with a deadline


class Calls(Counter):
    """Counts the calls of Python functions in a block, by name."""

    def __enter__(self):
        gc.disable()  # what it collects may call anything
        sys.setprofile(lambda frame, event, _: self.update([frame.f_code.co_name] * (event == "call")))
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        gc.enable()
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
    assert end.total() <= 9, end  # two of them ask whether torch uses a GPU
    assert count.total() <= 2, count


def test_emissions_and_cost_take_few_calls_more_and_a_charge_a_minute(monitor, gpu, time_source):
    electricity = Electricity(ConstantSignal(380, "g/kWh"), ConstantSignal(0.3, "EUR/kWh"))
    charges = []
    with TrainingEnergy(monitor, electricity=electricity, quiet=True) as energy:
        for number in range(200):
            with Calls() as begin:
                energy.on_step_begin()
            gpu.execute(Work(1.0, 400.0))
            energy.on_step_end()
            if begin["charge"]:
                charges.append(number)
            elif number > 2:
                assert begin.total() <= 12, begin
    assert 3 <= len(charges) <= 5


def train(energy, gpu, seconds):
    with energy.step():
        gpu.execute(Work(seconds, 484.9, 0.938, 0.744))


def test_of_logs_that_follow_each_other_quickly_few_wait_for_a_driver(energy, gpu):
    waiting = []
    for number in range(30):
        train(energy, gpu, 0.1)
        with Calls() as log:
            assert energy.log()["power_limit_w"] == 350
        if WAITS.isdisjoint(log):
            assert log.total() <= 56, log
        else:
            assert set(log) >= WAITS
            waiting.append(number)
    assert waiting[:2] == [0, 5]  # a first power is known for half a second, later ones for a second
    assert len(waiting) <= 5


def test_a_limit_set_by_the_optimizer_is_in_even_an_immediate_log(monitor, gpu):
    optimizer = GlobalPowerLimitOptimizer(
        monitor, wait_steps=0, warmup_steps=0, profile_steps=2, pl_step=50, search=GridSearch
    )
    with TrainingEnergy(optimizer=optimizer, quiet=True) as energy:
        for _ in range(40):
            train(energy, gpu, 0.05)
            assert energy.log()["power_limit_w"] == gpu.read_power_limit_watts()
    assert len(optimizer.trials) > 3


def test_the_journal_is_written_at_most_once_a_second(monitor, gpu, tmp_path):
    with TrainingEnergy(monitor, folder=tmp_path, quiet=True) as energy:
        for _ in range(30):
            train(energy, gpu, 0.1)
            energy.log()
    steps = [json.loads(line)["step"] for line in (tmp_path / "zeus-energy" / "rank-0.jsonl").read_text().splitlines()]
    assert len(steps) <= 1 + 5  # the first says that the part has begun
    assert steps[-1] == 30
