"""The shapes of a step, which tell its work from other work."""

import torch

from zeus_core.pipeline.taps.step_shapes import StepShapes


def step(shapes, *sizes):
    for size in sizes:
        shapes.note((torch.zeros(2, size), [torch.zeros(size)]), None, "not a tensor")
    return shapes.end_step()


def test_shapes_are_told_once_three_steps_have_the_same():
    shapes = StepShapes()
    assert [step(shapes, 8, 8) for _ in range(3)] == [None, None, {"shapes": "2x8, 8"}]
    assert [step(shapes, 11) for _ in range(3)] == [None, None, {"shapes": "2x11, 11"}]


def test_shapes_that_differ_from_step_to_step_are_not_told():
    shapes = StepShapes()
    assert [step(shapes, size) for size in (8, 9, 8, 10, 8)] == [None] * 5
    assert [StepShapes().end_step() for _ in range(3)] == [None] * 3
