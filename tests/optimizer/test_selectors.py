"""The rules that pick a power limit."""

import pytest

from tests.contracts.optimum_selector import OptimumSelectorContract
from zeus_core.errors import UsageError
from zeus_core.optimizer.global_setting._rival_searches import better_choice
from zeus_core.optimizer.power_limit import (
    Energy,
    EnergyWithin,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)

SWEEP = [
    PowerLimitMeasurement(power_limit=300, energy=1000, time=10.0),
    PowerLimitMeasurement(power_limit=250, energy=850, time=10.0),
    PowerLimitMeasurement(power_limit=200, energy=780, time=10.9),
    PowerLimitMeasurement(power_limit=150, energy=760, time=12.0),
    PowerLimitMeasurement(power_limit=100, energy=900, time=17.0),
]


class TestPublishedSelectors(OptimumSelectorContract):
    @pytest.fixture(params=[Energy(), Time(), ZeusCost(), MaxSlowdownConstraint(), EnergyWithin()], ids=repr)
    def selector(self, request):
        return request.param


@pytest.mark.parametrize(
    ("selector", "limit_watts"),
    [
        (Energy(), 150),
        (Time(), 250),
        (ZeusCost(eta_knob=1.0), 150),
        (ZeusCost(eta_knob=0.0), 250),
        (ZeusCost(eta_knob=0.5), 250),
        (MaxSlowdownConstraint(factor=1.0), 250),
        (MaxSlowdownConstraint(factor=1.1), 200),
        (MaxSlowdownConstraint(factor=1.2), 150),
        (MaxSlowdownConstraint(factor=9.0), 100),
        (EnergyWithin(factor=1.0), 250),
        (EnergyWithin(factor=1.1), 200),
        (EnergyWithin(factor=1.2), 150),
        (EnergyWithin(factor=9.0), 150),  # 100 W keeps this bound too, and costs more energy
    ],
)
def test_the_published_rules(selector, limit_watts):
    assert isinstance(selector, OptimumSelector)
    assert selector.select(SWEEP) == limit_watts
    assert selector.select(SWEEP[::-1]) == limit_watts


def test_zeus_cost_weighs_time_with_the_power_of_all_gpus():
    assert ZeusCost(eta_knob=0.5, world_size=4).cost(SWEEP[1], SWEEP[0]) == 0.5 * 850 + 0.5 * 4 * 300 * 10


def test_zeus_cost_of_clocks_uses_the_given_power_and_never_megahertz():
    clocks = [PowerLimitMeasurement(power_limit=1410, energy=1000, time=10.0), PowerLimitMeasurement(1200, 850, 10.9)]
    cost = ZeusCost(eta_knob=0.5, world_size=4, max_power_watts=400)
    assert cost.cost(clocks[1], clocks[0]) == 0.5 * 850 + 0.5 * 4 * 400 * 10.9
    assert repr(cost) == "ZeusCost(eta_knob=0.5, world_size=4, max_power_watts=400)"


@pytest.mark.parametrize("max_power_watts", [0, float("inf"), "much"])
def test_a_highest_power_that_cannot_be_is_an_error(max_power_watts):
    with pytest.raises(UsageError, match="max_power_watts is"):
        ZeusCost(max_power_watts=max_power_watts)


def test_limits_as_fast_as_the_fastest_within_the_noise_count_as_equal():
    measurements = [
        PowerLimitMeasurement(300, 1000, 10.02, time_stderr=0.02),
        PowerLimitMeasurement(250, 850, 10.00, time_stderr=0.02),
        PowerLimitMeasurement(200, 780, 10.04, time_stderr=0.02),
        PowerLimitMeasurement(150, 760, 10.10, time_stderr=0.02),
    ]
    assert Time().select(measurements) == 200


@pytest.mark.parametrize("eta_knob", [-0.1, 1.1, float("nan")])
def test_eta_knob_outside_0_to_1_is_an_error(eta_knob):
    with pytest.raises(UsageError, match=f"eta_knob is {eta_knob}"):
        ZeusCost(eta_knob=eta_knob)


def test_a_world_of_no_gpus_is_an_error():
    with pytest.raises(UsageError, match="world_size is 0"):
        ZeusCost(0.5, world_size=0)


@pytest.mark.parametrize("factor", [0.99, float("nan"), float("inf")])
def test_a_slowdown_factor_below_1_is_an_error(factor):
    with pytest.raises(UsageError, match=f"factor is {factor}"):
        MaxSlowdownConstraint(factor=factor)
    with pytest.raises(UsageError, match=f"factor is {factor}"):
        EnergyWithin(factor=factor)


class EnergyAboveTarget(Objective):
    def __init__(self, target):
        self.target = target

    def cost(self, measurement, baseline):
        return measurement.energy - self.target


@pytest.mark.parametrize("target", [0, 1000, 1500], ids=["positive", "zero", "negative"])
def test_of_two_knobs_the_cheaper_is_chosen_whatever_the_costs_sign(target):
    limit, clock = PowerLimitMeasurement(200, 800, 10.5), PowerLimitMeasurement(1200, 700, 10.5)
    originals = SWEEP[0], PowerLimitMeasurement(1410, 1000, 10.0)
    selector = EnergyAboveTarget(target)
    assert better_choice(selector, originals, [limit, clock]) == 1
    assert better_choice(selector, originals[::-1], [clock, limit]) == 0


def test_selectors_name_themselves():
    assert repr(MaxSlowdownConstraint(1.1)) == "MaxSlowdownConstraint(factor=1.1)"
    assert repr(EnergyWithin(1.1)) == "EnergyWithin(factor=1.1)"
    assert repr(ZeusCost()) == "ZeusCost(eta_knob=0.5, world_size=1)"
    assert repr(Energy()) == "Energy()"
