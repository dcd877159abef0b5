"""The oracle of the tests of parts, where the least half-width can be computed by hand."""

import math

import pytest

from tests.support.part_oracle import WALK, Timing, least_half_widths

SCRIPT = [(300.0, 1.0), (200.0, 1.0)]
TIMES = {"first": [(0.0, 1.0)], "second": [(1.0, 2.0)]}


def widths(knots, latents=({"a": 30.0}, {"b": 40.0}), lag_seconds=0.0, timing=None):
    return least_half_widths(SCRIPT, latents, lag_seconds, 0.0, knots, TIMES, timing)


def test_only_the_sum_of_two_parts_is_read():
    found = widths([(0, 0.0), (0, 2.0)])
    least = 1.96 * 30 * 40 / math.hypot(30, 40)
    assert found == pytest.approx({"first": least, "second": least}, abs=0.01)


def test_an_update_at_the_edge_tells_all_and_one_inside_a_part_tells_its_power():
    assert widths([(0, 0.0), (0, 1.0), (0, 2.0)]) == pytest.approx({"first": 0.0, "second": 0.0}, abs=0.01)
    assert widths([(0, 0.0), (0, 0.5), (0, 2.0)]) == pytest.approx({"first": 0.0, "second": 0.0}, abs=0.02)


def test_two_counts_have_no_sum():
    found = widths([(0, 0.0), (0, 0.5), (1, 1.5), (1, 2.0)], [{"a": 30.0}, {"a": 30.0, "b": 40.0}])
    assert found == pytest.approx({"first": 0.0, "second": 0.0}, abs=0.02)
    assert widths([(0, 0.0), (1, 2.0), (1, 2.5)])["first"] == pytest.approx(1.96 * 30, rel=0.01)


def test_the_steps_of_a_walk_add_up():
    found = widths([(0, 0.0), (0, 0.5)], [{(WALK, 0): 10.0}, {(WALK, 1): 10.0}])
    assert found["first"] == pytest.approx(0.0, abs=0.02)
    assert found["second"] == pytest.approx(1.96 * 10, rel=0.01)


def test_who_is_not_told_the_age_of_a_counter_knows_less():
    knots = [(0, 0.0), (0, 1.0), (0, 2.0)]
    told, not_told = widths(knots)["first"], widths(knots, timing=Timing(age_seconds=0.01))["first"]
    assert not_told > told + 0.5
