"""The energies of parts by samples of their power, against the power that these were taken of."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.monitor._parts._part import Part, Piece
from zeus_core.monitor._parts._power_samples import PowerSamples

PEAK_WATTS = 500.0


def parts_of(*seconds: float) -> list[Part]:
    return [Part(f"class {number}", [Piece(length)]) for number, length in enumerate(seconds)]


def sampled(watts, end: float, period: float = 0.13, delay: float = 0.05) -> PowerSamples:
    """Samples of a function of time, which show it as it was a while ago."""
    samples, at = PowerSamples(0.0, PEAK_WATTS), period / 2
    while at < end:
        samples.add(at - 0.001, at + 0.001, watts(at - delay))
        at += period
    return samples


@given(
    lengths=st.lists(st.floats(0.005, 5.0), min_size=1, max_size=6),
    powers=st.lists(st.floats(20.0, PEAK_WATTS), min_size=6, max_size=6),
    delay=st.floats(0.0, 0.12),
)
def test_samples_tell_parts_of_constant_power_exactly_and_nothing_of_shorter_ones(lengths, powers, delay):
    parts = parts_of(*lengths)

    def watts(at: float) -> float:
        for power, length in zip(powers, lengths, strict=False):
            if at < length:
                return power
            at -= length
        return powers[-1]

    told = sampled(watts, sum(lengths), delay=delay).of_parts(0.0, parts)
    for of_part, power, length in zip(told, powers, lengths, strict=False):
        if length < 0.12:
            assert of_part is None  # else it could be of the part before
        if length > 0.12 + 0.13:
            assert of_part.energy_joules == pytest.approx(power * length)
            assert 0 < of_part.stderr_joules <= 0.1 * power * length + 0.0025 * PEAK_WATTS * length


def test_a_power_that_changes_leaves_the_energy_as_uncertain():
    inside = []
    for seed in range(200):
        generator = random.Random(seed)
        powers = [generator.uniform(100.0, 500.0) for _ in range(40)]
        length = generator.uniform(0.1, 0.6)

        def watts(at, powers=powers, length=length):
            return powers[min(int(max(at, 0.0) / length), 39)]

        (of_part,) = sampled(watts, 3.0, delay=generator.uniform(0.0, 0.1)).of_parts(0.0, parts_of(3.0))
        truth = sum(watts((step + 0.5) / 1000) / 1000 for step in range(3000))
        inside.append(abs(of_part.energy_joules - truth) <= 2 * of_part.stderr_joules)
    assert sum(inside) >= 0.93 * len(inside)


def test_a_sensor_that_shows_a_mean_tells_only_of_parts_that_are_longer():
    samples = PowerSamples(1.0, PEAK_WATTS)
    for number in range(40):
        samples.add(0.1 * number, 0.1 * number, 300.0)
    short, long = samples.of_parts(0.0, parts_of(1.0, 2.0))
    assert short is None
    assert long.energy_joules == pytest.approx(600.0)


def test_what_is_settled_is_dropped_and_so_is_what_comes_late():
    samples = sampled(lambda _: 300.0, 2.0)
    samples.add(0.5, 0.5, 0.0)  # of a thread that was overtaken
    samples.forget_before(1.0)
    before, after = samples.of_parts(0.0, parts_of(1.0, 1.0))
    assert before is None
    assert after.energy_joules == pytest.approx(300.0)


def test_an_hour_without_a_counter_takes_little_memory_and_is_still_told():
    samples = sampled(lambda at: 300.0 if at < 1800 else 100.0, 3600.0)
    assert len(samples) <= 4096
    (of_part,) = samples.of_parts(0.0, parts_of(3600.0))
    assert of_part.energy_joules == pytest.approx(1800 * 400.0, rel=0.001)
