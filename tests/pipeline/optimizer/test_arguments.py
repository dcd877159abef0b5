"""Accepted arguments, and the errors for all others."""

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.pipeline.optimizer import PipelineFrequencySettings, PipelineRank

DEFAULTS = PipelineFrequencySettings()
NAMES = [field.name for field in fields(DEFAULTS)]
PATHS = ("profile_path", "plan_path")
MAY_BE_NONE = ("lowest_clock_mhz", "original_clock_mhz", "switch_seconds", *PATHS)

junk = st.one_of(
    st.binary(),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(), st.none(), max_size=1),
    st.sampled_from([object(), math.nan, math.inf, -math.inf, -1, -0.5, 10**400, -(10**400), "", int, ...]),
)


@pytest.mark.parametrize("name", NAMES)
@given(value=junk)
def test_junk_is_a_usage_error_that_names_the_argument(name, value):
    if name in ("warmup_steps", "profile_instructions", "max_clocks", "check_steps") and value == 10**400:
        return
    if name.endswith("_mhz") and value == 10**400:
        return
    with pytest.raises(UsageError, match=f"^{name} is "):
        replace(DEFAULTS, **{name: value})


@pytest.mark.parametrize("name", NAMES)
def test_none_is_taken_where_it_means_something(name):
    if name in MAY_BE_NONE:
        assert getattr(replace(DEFAULTS, **{name: None}), name) is None
    else:
        with pytest.raises(UsageError, match=f"^{name} is None"):
            replace(DEFAULTS, **{name: None})


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"follow_stragglers", "quiet"}])
@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_is_no_number_and_no_path(name, value):
    with pytest.raises(UsageError, match=f"^{name} is {value}"):
        replace(DEFAULTS, **{name: value})


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PATHS])
@given(text=st.text())
def test_text_is_no_number(name, text):
    with pytest.raises(UsageError, match=f"^{name} is "):
        replace(DEFAULTS, **{name: text})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("slowdown_factor", [1, 1.0, 1.2, 10], [0.99, 10.1, 0]),
        ("tolerance_fraction", [0, 0.5, 1], [-0.01, 1.01]),
        ("switch_seconds", [0, 0.01, 1], [-1e-9, 1.5]),
        ("node_power_watts", [0, 200.0], [-1.0, 1e5]),
        ("warmup_steps", [0, 1], [-1, 1.0]),
        ("profile_instructions", [1, 100], [0, 2.5]),
        ("max_clocks", [2, 100], [1, 0]),
        ("check_steps", [1, 10], [0]),
        ("lowest_clock_mhz", [1, 1410], [0, 1410.0]),
        ("original_clock_mhz", [1, 1410], [0, -5]),
        ("follow_stragglers", [True, False], [0, 1, "yes"]),
        ("profile_path", ["profile.json"], [b"profile.json", ["profile.json"]]),
        ("plan_path", ["plan.json"], [b"plan.json", {"plan.json"}]),
    ],
)
def test_ranges(name, good, bad):
    for value in good:
        assert getattr(replace(DEFAULTS, **{name: value}), name) == value
    for value in bad:
        with pytest.raises(UsageError, match=f"^{name} is .*; it must be "):
            replace(DEFAULTS, **{name: value})


@pytest.mark.parametrize("name", PATHS)
def test_a_path_becomes_its_text(name):
    assert getattr(replace(DEFAULTS, **{name: Path("a") / "b.json"}), name) == str(Path("a") / "b.json")


@pytest.mark.parametrize("name", ["rank", "pipeline"])
@given(value=st.one_of(junk.filter(lambda number: number != 10**400), st.booleans(), st.none(), st.text(), st.floats()))
def test_a_place_is_two_whole_numbers_from_0(name, value):
    with pytest.raises(UsageError, match=rf"^PipelineRank\.{name} is "):
        PipelineRank(**{"rank": 0, name: value})


def test_a_place_knows_its_numbers():
    assert (PipelineRank(3).rank, PipelineRank(3).pipeline, PipelineRank(0, 2).pipeline) == (3, 0, 2)
