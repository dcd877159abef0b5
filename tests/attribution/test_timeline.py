"""The parts of a time, and the steps in them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_core.attribution.timeline import Timeline

PHASES = 10
SHORT, LONG = st.floats(0.01, 0.045), st.floats(0.055, 0.4)  # steps shorter than 0.05 s have no phases


@settings(deadline=None, max_examples=40)
@given(st.lists(SHORT | LONG, min_size=2, max_size=30), st.floats(0.0, 3.0), st.floats(0.01, 9.0))
def test_each_piece_lies_in_the_phase_of_its_step(lengths, begin, seconds):
    timeline = Timeline(1.0, None, "steps", "steps")
    begins = list(itertools.accumulate(lengths, initial=1.0))
    for at in begins:
        timeline.begin_step(at)
    timeline.change(begins[-1], "idle")
    parts = timeline.parts(begin, begin + seconds)
    assert sum(part.seconds for part in parts) == pytest.approx(seconds)
    assert [part.key for part in parts] == [key for key in (None, "steps", "idle") if key in [p.key for p in parts]]
    until = begin
    for part in parts:
        for piece in part.pieces:
            middle, until = until + piece.seconds / 2, until + piece.seconds
            expected = 0
            for step, length in zip(begins, lengths, strict=False):
                if step <= middle < step + length and length >= 0.05:
                    expected = 1 + int((middle - step) / length * PHASES)
            assert piece.phase == expected or piece.seconds < 1e-9
