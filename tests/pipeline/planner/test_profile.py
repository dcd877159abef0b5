"""Profiles: read, written, refused, filtered."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.planner.instances import options, smooth_profile
from zeus_core.errors import UsageError
from zeus_core.pipeline import PipelineProfile
from zeus_core.pipeline.planner.clock_options import MeasuredOption, lower_hull, pareto_options
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile

HEADER = "stage,instruction,frequency,time,energy\n"
GOOD = "0,forward,1410,0.05,24\n0,forward,1200,0.06,20\n0,backward,1410,0.1,44\n0,backward,1200,0.12,40\n"


def read(tmp_path, text, **arguments):
    path = tmp_path / "profile.csv"
    path.write_text(text)
    return PipelineProfile.from_csv(path, **{"blocking_power_watts": 80.0, **arguments})


def test_the_published_layout_is_read(tmp_path):
    profile = read(tmp_path, HEADER + GOOD)
    assert profile.stages == 1
    assert profile.get(0, "forward").at_highest_clock == MeasuredOption(1410, 0.05, 24.0)
    assert [option.clock_mhz for option in profile.get(0, "backward").options] == [1410, 1200]


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_profile_comes_back_from_a_file(tmp_path, suffix):
    profile = smooth_profile(3, blocking_power_watts=[80.0, 70.0, 60.0], gpus=[1, 2, 4])
    path = tmp_path / "profile"
    if suffix == "csv":
        profile.to_csv(path)
        again = PipelineProfile.from_csv(path, profile.blocking_power_watts, profile.gpus)
    else:
        path.write_text(json.dumps(profile.to_json()))
        again = PipelineProfile.from_json(json.loads(path.read_text()))
    assert again == profile
    assert again.fingerprint == profile.fingerprint != smooth_profile(3).fingerprint


def test_standard_errors_and_fixed_kinds_come_back(tmp_path):
    instructions = [
        InstructionProfile(
            0, "forward", (MeasuredOption(1410, 0.05, 24.0, 0.001, 0.5), MeasuredOption(1200, 0.06, 20.0))
        ),
        InstructionProfile(0, "optimizer-step", (MeasuredOption(None, 0.01, 2.0),)),
    ]
    profile = PipelineProfile(instructions, 80)
    profile.to_csv(tmp_path / "profile.csv")
    assert PipelineProfile.from_csv(tmp_path / "profile.csv", 80) == profile


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column stage"),
        ("stage,instruction,frequency,time\n", "no column energy"),
        (HEADER, "the profile is empty"),
        (HEADER + "0,forward,1410,0.05,24\n", r"stage 0 forward: 1 option\(s\)"),
        (HEADER + GOOD + "0,forward,1410,0.05,24\n", "line 6: stage 0 forward at 1410 MHz is a duplicate of line 2"),
        (HEADER + GOOD.replace("0.05", "0"), "line 2: time is 0.0"),
        (HEADER + GOOD.replace("0.05", "-1"), "line 2: time is -1.0"),
        (HEADER + GOOD.replace("0.05", "nan"), "line 2: time is nan"),
        (HEADER + GOOD.replace("24", "nan"), "line 2: energy_joules is nan"),
        (HEADER + GOOD.replace("24", "inf"), "line 2: energy_joules is inf"),
        (HEADER + GOOD.replace("24", "much"), "line 2: energy is 'much'"),
        (HEADER + GOOD.replace("0,forward,1200", "0,forward,1410000"), "line 3: frequency is 1410000"),
        (HEADER + GOOD.replace("0,forward,1200", "0,forward,1200.5"), "line 3: frequency is '1200.5'"),
        (HEADER + GOOD.replace("0,forward,1200", "0,forward,0"), "line 3: frequency is 0"),
        (HEADER + GOOD.replace("0,forward,1200", "0,forward,"), "stage 0 forward: an option without a clock"),
        (HEADER + GOOD.replace("0,forward,1200", "0,froward,1200"), "line 3: instruction: 'froward' is not a kind"),
        (HEADER + GOOD.replace("0,", "x,", 1), "line 2: stage is 'x'"),
        (HEADER + GOOD.replace("0,", "-1,", 1), "line 2: stage is '-1'"),
        (HEADER + GOOD.replace("0,f", "2,f"), "no instruction of stage 1, but one of stage 2"),
        (HEADER + "0,forward\n", "line 2: the row must have as many values"),
        (HEADER + GOOD + "0,all-reduce,1410,1,1\n0,all-reduce,1200,1,1\n", "a fixed kind has exactly one"),
    ],
)
def test_a_bad_row_is_named(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"missing\.csv"):
        PipelineProfile.from_csv(tmp_path / "missing.csv", 80.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocking_power_watts": math.nan}, "blocking_power_watts of stage 0 is nan"),
        ({"blocking_power_watts": -1.0}, "is -1.0"),
        ({"blocking_power_watts": [80.0, 80.0]}, "2 values, but the profile has 1 stages"),
        ({"gpus": 0}, "gpus of stage 0 is 0"),
    ],
)
def test_bad_numbers_of_stages_are_named(tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        read(tmp_path, HEADER + GOOD, **arguments)


def test_clocks_that_a_device_does_not_support_are_named():
    profile = smooth_profile(2)
    with pytest.raises(UsageError, match=r"stage 0 forward: the device does not support 850 MHz; .* is 855"):
        profile.check_clocks(range(855, 1411))
    profile.check_clocks(range(200, 1500))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda document: document.update(format="other"), 'does not say "format": "zeus-core pipeline profile"'),
        (lambda document: document.update(version=1), "its version is 1; this program reads version 2"),
        (lambda document: document.update(gpus=[0, 1]), "the profile: gpus of stage 0 is 0"),
        (
            lambda document: document["instructions"][0]["options"][0].update(time_seconds=0.0),
            r"the profile.instructions\[0\].options\[0\]: time is 0.0",
        ),
    ],
)
def test_damaged_json_is_refused(damage, message):
    document = smooth_profile(2).to_json()
    damage(document)
    with pytest.raises(UsageError, match=message):
        PipelineProfile.from_json(document)


def costs_of(measured, watts):
    profile = PipelineProfile([InstructionProfile(0, "forward", measured)], watts)
    return {option: profile.effective_cost_joules(0, option) for option in profile.instructions[0].options}


@given(options(), st.sampled_from([0.0, 80.0]))
def test_no_option_beats_a_kept_one_and_no_mixture_beats_a_corner(measured, watts):
    costs = costs_of(measured, watts)
    kept_options = pareto_options(costs)
    all_of_them = [(option.time_seconds, cost) for option, cost in costs.items()]
    kept = [(option.time_seconds, option.cost_joules) for option in kept_options]
    assert kept == sorted(kept)
    assert [cost for _, cost in kept] == sorted((cost for _, cost in kept), reverse=True)
    assert kept[0][0] == min(time for time, _ in all_of_them)
    assert kept[-1][1] == min(cost for _, cost in all_of_them)
    for time, cost in all_of_them:
        assert any(other <= time and less <= cost for other, less in kept)
    hull = lower_hull(kept_options)
    assert (hull[0], hull[-1]) == (kept_options[0], kept_options[-1])
    slopes = [(b.cost_joules - a.cost_joules) / (b.time_seconds - a.time_seconds) for a, b in pairwise(hull)]
    assert slopes == sorted(set(slopes))


def test_a_gain_in_time_within_the_noise_buys_nothing():
    fast, same, slow = (
        MeasuredOption(1410, 0.0999, 50.0, 0.0005),
        MeasuredOption(1395, 0.1, 45.0, 0.0005),
        MeasuredOption(1200, 0.12, 40.0),
    )
    faster = MeasuredOption(1425, 0.0998, 60.0, 0.0005)
    kept = [option.clock_mhz for option in pareto_options(costs_of((faster, fast, same, slow), 80.0))]
    assert kept == [1425, 1395, 1200]  # the fastest stays, so that the shortest time does


def test_the_fingerprint_of_a_profile_stays():
    """Plans in files name it. If it must change, raise the version of plans: they fit no profile any more."""
    options = (MeasuredOption(1410, 0.1, 40), MeasuredOption(1200, 0.12, 36))
    profile = PipelineProfile([InstructionProfile(0, kind, options) for kind in ("forward", "backward")], 80)
    assert profile.fingerprint == "b4e8c5f0de8d489e42ce026cb98059aeb5be843a83068e939d8c1b868e9c89f5"
