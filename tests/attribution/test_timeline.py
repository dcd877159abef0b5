"""The parts of a time, and the steps in them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_core.attribution.timeline import ClassTimeline

PHASES = 10
SHORT, LONG = st.floats(0.01, 0.045), st.floats(0.055, 0.4)  # steps shorter than 0.05 s have no phases


@settings(deadline=None, max_examples=40)
@given(st.lists(SHORT | LONG, min_size=2, max_size=30), st.floats(0.0, 3.0), st.floats(0.01, 9.0))
def test_each_piece_lies_in_the_phase_of_its_step(lengths, begin, seconds):
    timeline = ClassTimeline(1.0, None, "steps", "steps")
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


def phases(parts):
    return [(part.key, [piece.phase for piece in part.pieces]) for part in parts]


def test_a_step_that_a_pass_interrupts_goes_on_with_its_phases():
    timeline = ClassTimeline(0.0, None, "steps", "steps")
    for number in range(3):
        timeline.begin_step(1.0 * number)
    timeline.change(2.25, "pass")
    timeline.change(2.45, "steps")
    assert phases(timeline.parts(2.0, 2.65)) == [("steps", [1, 2, 3]), ("pass", [0]), ("steps", [3, 4, 5])]
    timeline.begin_step(3.2)
    assert [piece.phase for piece in timeline.parts(2.45, 3.2)[0].pieces] == [3, 4, 5, 6, 7, 8, 9, 10]


def test_a_step_before_an_evaluation_is_as_long_as_it_was():
    timeline = ClassTimeline(0.0, None, "steps", "steps")
    for number in range(3):
        timeline.begin_step(1.0 * number)
    timeline.end_step()
    timeline.change(2.8, "evaluation")
    (steps, evaluation) = timeline.parts(2.0, 9.0)
    assert [piece.phase for piece in steps.pieces] == list(range(1, 11))
    assert steps.pieces[0].seconds == pytest.approx(0.08)
    assert evaluation.seconds == pytest.approx(6.2)
