"""Selectors of a user's own, made from public names alone: they work wherever one is taken."""

import math

import pytest

from tests.contracts.optimum_selector import OptimumSelectorContract
from tests.mixed.allocation.instances import FAST, SLOW
from zeus_core.batches import MicroBatchOptimizer
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.jobs import RecurringJob, Target
from zeus_core.mixed.allocation import allocate
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalClockOptimizer, GlobalPowerLimitOptimizer
from zeus_core.optimizer.power_limit import (
    Energy,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
)
from zeus_core.search import AdaptiveSearch, GridSearch
from zeus_core.testing import VirtualTime

WORK = Work(0.5, 484.9, 0.938, 0.744)


class Price(Objective):
    """Cents for the energy, and for each second that the machine is rented."""

    def __init__(self, cents_per_joule=0.01, cents_per_second=1.0):
        self.weights = cents_per_joule, cents_per_second

    def cost(self, measurement, baseline):
        return self.weights[0] * measurement.energy + self.weights[1] * measurement.time


class LeastPower(Objective):
    """The lowest mean power."""

    def cost(self, measurement, baseline):
        return measurement.energy / measurement.time


class NotLongerThan(OptimumSelector):
    """A rule that is no cost, and answers that it has a bound."""

    bound_factor = 1.08

    def select(self, measurements):
        original = max(measurements, key=lambda one: one.power_limit)
        kept = [one for one in measurements if one.time <= self.bound_factor * original.time]
        return min(kept, key=lambda one: one.energy).power_limit


class ShareOfPower(Objective):
    """The mean power over the highest one, and the time."""

    def __init__(self, max_power_watts=None):
        self.max_power_watts = max_power_watts

    @property
    def needs_max_power(self):
        return self.max_power_watts is None

    def completed(self, max_power_watts, world_size=None):
        return ShareOfPower(max_power_watts)

    def cost(self, measurement, baseline):
        highest_watts = self.max_power_watts or baseline.power_limit
        return measurement.energy / measurement.time / highest_watts + measurement.time / baseline.time


class EnergyWithinFactor(MaxSlowdownConstraint):
    """Written before `EnergyWithin` was there."""

    def cost(self, measurement, baseline):
        return measurement.energy if measurement.time <= self.factor * baseline.time else math.inf


class PriceOfTime(Time):
    def cost(self, measurement, baseline):
        return 0.01 * measurement.energy + measurement.time

    def select(self, measurements):
        return Objective.select(self, measurements)


OWN = [Price(), LeastPower(), NotLongerThan(), ShareOfPower(400.0)]


class TestOwnSelectors(OptimumSelectorContract):
    @pytest.fixture(params=OWN, ids=lambda one: type(one).__name__)
    def selector(self, request):
        return request.param


def trained(make, selector, steps=600, grants_control=True, **arguments):
    """Return the optimizer after a training on a simulated A100, and the factor by which it was slower."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source, grants_control=grants_control)
    optimizer = make(ZeusMonitor(gpus=[gpu], time_source=time_source), selector, quiet=True, **arguments)
    optimizer.on_train_begin(max_steps=steps)
    began = time_source.now()
    for _ in range(steps):
        optimizer.on_step_begin()
        gpu.execute(WORK)
        optimizer.on_step_end()
    seconds = time_source.now() - began
    optimizer.on_train_end()
    return optimizer, seconds / (steps * gpu.preset.physics.operating_point(WORK, 400.0).seconds)


def true_cost(selector, limit_watts):
    """Return the cost of a step at a limit, without any noise."""
    physics = find_preset("A100").physics
    points = [(round(watts), physics.operating_point(WORK, watts)) for watts in (limit_watts, 400.0)]
    one, original = (PowerLimitMeasurement(watts, point.energy_joules, point.seconds) for watts, point in points)
    return selector.cost(one, original)


@pytest.mark.parametrize("selector", [Price(), LeastPower(), ShareOfPower()], ids=repr)
def test_a_cost_is_minimized_by_the_search_of_a_run(selector):
    optimizer, _ = trained(GlobalPowerLimitOptimizer, selector, pl_step=25)
    assert optimizer.optimum_selector is selector
    chosen = optimizer.chosen_limit_watts
    assert true_cost(selector, chosen) <= 1.02 * min(true_cost(selector, watts) for watts in range(100, 401, 25))
    assert f", of 13, by {selector!r}" in optimizer.result()["power limit"]


@pytest.mark.parametrize("selector", [EnergyWithinFactor(2.0), PriceOfTime()], ids=lambda one: type(one).__name__)
def test_a_derived_class_with_its_own_cost_is_not_its_base_rule(selector):
    assert not selector.prefers_lowest
    assert selector.bound_factor is None
    assert selector.time_tolerance is None
    optimizer, _ = trained(GlobalPowerLimitOptimizer, selector, pl_step=25)
    chosen = optimizer.chosen_limit_watts
    assert true_cost(selector, chosen) <= 1.02 * min(true_cost(selector, watts) for watts in range(100, 401, 25))


@pytest.mark.parametrize("make", [GlobalPowerLimitOptimizer, GlobalClockOptimizer])
@pytest.mark.parametrize("search", [None, GridSearch])
def test_a_bound_that_a_rule_answers_is_kept(make, search):
    counts = {} if search is None else {"warmup_steps": 2, "profile_steps": 5}
    if search is not None:
        counts["search"] = lambda settings, _: GridSearch(settings[:: len(settings) // 10])
    optimizer, slowdown = trained(make, NotLongerThan(), **counts)
    if search is None:
        assert slowdown <= 1.08
    assert optimizer.saving_fraction > 0.05
    line = next(iter(optimizer.result().values()))
    assert " is the best of " in line
    assert "by NotLongerThan" in line
    assert "its bound was not kept" not in line


@pytest.mark.parametrize("selector", [Price(), NotLongerThan(), ShareOfPower()], ids=lambda one: type(one).__name__)
def test_limits_and_clocks_are_compared(selector):
    optimizer, _ = trained(GlobalPowerLimitOptimizer, selector, knob="auto", pl_step=25)
    assert {"power limit", "or power limit"} & optimizer.result().keys()
    assert {"SM clock", "or SM clock"} & optimizer.result().keys()
    if selector.needs_max_power:
        assert optimizer.optimum_selector.max_power_watts == 400


def test_where_nothing_may_be_changed_the_command_of_an_administrator_is_stated():
    optimizer, _ = trained(GlobalPowerLimitOptimizer, Price(), steps=300, grants_control=False)
    assert "-pl " in optimizer.result()["to set it"]


def test_an_adaptive_search_of_clocks_asks_for_the_power_that_it_needs():
    with pytest.raises(UsageError, match="clocks are no power"):
        AdaptiveSearch([1410, 1200], ShareOfPower(), knob="clock")
    assert AdaptiveSearch([1410, 1200], ShareOfPower(400.0), knob="clock").ask() == 1410


def test_devices_are_shared_by_a_price():
    by_price = allocate([FAST, SLOW], 256, Price(2.0, 0.0))
    assert by_price.batches == allocate([FAST, SLOW], 256, Energy()).batches
    assert by_price.cost == pytest.approx(2.0 * by_price.energy_joules)
    assert by_price.objective == "Price()"
    assert allocate([FAST, SLOW], 256, Price(0.0, 3.0)).step_seconds == allocate([FAST, SLOW], 256, Time()).step_seconds
    with pytest.raises(UsageError, match=r"objective is LeastPower\(\).*weighted sum of energy and time"):
        allocate([FAST, SLOW], 256, LeastPower())


def test_a_price_chooses_a_micro_batch_and_a_jobs_batch_size(tmp_path):
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
    optimizer = MicroBatchOptimizer(monitor, Price())
    assert optimizer.choose(64, 8, lambda size: gpu.execute(Work(0.01 * (size + 8.0), 300.0))) > 8
    assert "by Price()" in optimizer.result()["micro-batch"]

    storage = f"sqlite:///{tmp_path / 'zeus.db'}"
    job = RecurringJob("own", [32, 64], 32, Target("accuracy", 0.9), 5, objective=Price(), storage=storage)
    with job.run() as run:
        assert run.report(epoch=1, metric=0.95, seconds=100.0, energy_joules=5000.0)
    assert run.cost == pytest.approx(150.0)
