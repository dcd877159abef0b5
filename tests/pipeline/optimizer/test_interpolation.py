"""Options between measured clocks: where they are offered, and how far they are from the truth."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipeline_training import A100, true_profile, works
from zeus_core.device import find_preset
from zeus_core.pipeline import Frontier, PipelineProfile, make_plan, schedules
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile
from zeus_core.pipeline.profile.interpolation import interpolated
from zeus_core.pipeline.testing import simulate_pipeline

CLOCKS = tuple(range(1410, 195, -15))
MEASURED = (1410, 1275, 1140, 1005, 870, 585, 420)


def at(options, clocks):
    return tuple(option for option in options if option.clock_mhz in clocks)


@given(st.sets(st.sampled_from(CLOCKS[:50]), min_size=2, max_size=12))
def test_options_lie_between_measured_ones_which_stay_as_they_are(measured):
    options = at(true_profile(works(1)).get(0, "forward").options, measured)
    filled = interpolated(options, CLOCKS)
    assert at(filled, measured) == options
    clocks = [option.clock_mhz for option in filled]
    assert clocks == sorted(set(clocks) & set(CLOCKS), reverse=True)
    for upper, lower in pairwise(options):
        for option in filled:
            if lower.clock_mhz < option.clock_mhz < upper.clock_mhz:
                assert upper.time_seconds <= option.time_seconds <= lower.time_seconds


@pytest.mark.parametrize("model", [A100, "A40"])
def test_promises_stay_within_two_standard_errors_and_times_within_a_hundredth(model):
    preset = find_preset(model)
    clocks = tuple(range(preset.highest_clock_mhz, preset.lowest_clock_mhz - 1, -preset.clock_step_mhz))
    measured = {min(clocks, key=lambda one: abs(one - share * clocks[0])) for share in (1, 0.9, 0.8, 0.7, 0.6, 0.45)}
    for instruction in true_profile(works(2, model), model).instructions:
        truth = {option.clock_mhz: option for option in instruction.options}
        filled = interpolated(at(instruction.options, measured), clocks)
        assert len(filled) > 3 * len(measured)
        for option in filled:
            true = truth[option.clock_mhz]
            assert option.time_seconds == pytest.approx(true.time_seconds, rel=0.01)
            assert true.energy_joules - option.energy_joules <= 2 * option.energy_stderr_joules
            assert option.energy_joules <= 1.05 * true.energy_joules, "also at the kink of a power limit"


def test_nothing_is_offered_near_a_clock_the_device_does_not_follow():
    held = [MeasuredOption(clock, min(70.5 / clock, 0.081), 20.0) for clock in MEASURED]  # at 870 MHz and below
    clocks = [option.clock_mhz for option in interpolated(held, CLOCKS)]
    assert not [clock for clock in clocks if 585 < clock < 870]
    assert interpolated(held[:2], CLOCKS) == tuple(held[:2]), "two points say nothing about the curve"


def test_errors_of_neighbours_are_kept():
    options = [MeasuredOption(clock, 70.5 / clock, 20.0, 1e-4, 0.3) for clock in MEASURED[:4]]
    for option in interpolated(options, CLOCKS):
        assert option.energy_stderr_joules >= 0.3
        assert option.time_stderr_seconds >= 1e-4
    lost = [MeasuredOption(clock, 70.5 / clock, 0.0) for clock in MEASURED[:4]]
    assert interpolated(lost, CLOCKS) == tuple(lost)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_plan_with_them_gets_more_saving_in_no_more_time(stages):
    truth, schedule = true_profile(works(stages)), schedules.one_f_one_b(stages, 4)
    best = Frontier.from_profile(truth, schedule)
    seconds, joules = best.highest_clock_point

    def share(fill):
        instructions = [
            InstructionProfile(one.stage, one.kind, fill(at(one.options, MEASURED))) for one in truth.instructions
        ]
        profile = PipelineProfile(instructions, truth.blocking_power_watts)
        plan = make_plan(Frontier.from_profile(profile, schedule), slowdown_factor=1.0)
        run = simulate_pipeline(truth, plan)
        assert run.time_seconds <= 1.0002 * seconds
        return (joules - run.energy_joules) / (joules - make_plan(best, slowdown_factor=1.0).energy_joules)

    with_them = share(lambda options: interpolated(options, CLOCKS))
    assert with_them >= 0.96
    assert with_them > share(tuple) + 0.01
