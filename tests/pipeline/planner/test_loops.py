"""Compiled loops give what Python gives, to the last bit, and so do plans."""

import itertools
import math
import os
import signal
import threading
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.planner.instances import SPLIT, WHOLE, smooth_profile
from zeus_core.errors import UsageError
from zeus_core.pipeline import Frontier, make_plan, schedules
from zeus_core.pipeline.planner.loops import call_compiled, has_compiler

SHIFTS = (1, 2, 4, -1)
SCALE = 0.1


@pytest.fixture(autouse=True)
def llvm():
    pytest.importorskip("llvmlite")


class Whole(NamedTuple):
    size: int
    numbers: np.ndarray
    scale: float
    places: np.ndarray
    small: np.ndarray
    whole: np.ndarray
    real: np.ndarray


def arrays():
    small, places = np.arange(7, dtype=np.uint32), np.array([6, 5, 4, 3, 2, 1, 0])
    return Whole(7, np.linspace(-1, 2, 7), 0.3, places, small, np.zeros(8, np.int64), np.zeros(8))


def numbers(w, a, b, x) -> None:
    w.whole[0], w.whole[1] = a // b, a % b
    w.whole[2], w.whole[3] = ((a << 3) + (b & 6)) >> 2, -a
    w.real[0] = -x * SCALE + a / b - 2
    w.whole[4], w.whole[5] = int(x), bool(b)
    w.real[1], w.real[2], w.real[3] = float(a), abs_of(x), -x


def abs_of(x) -> float:
    return x if x >= 0 else -x


def choices(w, a, b, x) -> None:
    low, high = in_order(a, b)
    w.whole[0] = (low <= 0 and high > 0) or (a == b and not x > 0.5)
    w.whole[1], w.whole[2] = a or b, (a and b) + 1
    w.whole[3], w.real[0] = min(a, 3, b), max(x, a, 0.25)
    w.whole[4] = (low, b, a)[b % 3] + SHIFTS[a % 4] if a in (1, b + 1, -3) else low
    w.real[1] = math.exp(min(x, 5.0)) + math.log(x * x + 0.5) + 0.03**x + (a * a) ** 0.7


def in_order(a, b) -> tuple[int, int]:
    if a < b:
        return a, b
    return b, a


def loops(w, a, b, x) -> float:
    """A docstring."""
    total, turns, last = 0.0, 0, 0
    for at in range(len(w.numbers) - 1, -1, -2):
        if w.places[at] > 3 and w.numbers[at] < x:
            continue
        total += w.places[at] * SHIFTS[at % 4]
        last = at
    for at in range(a):
        if at > 4:
            break
        for inner in range(b, at):
            total = total + inner * w.scale
    while True:
        turns += 1
        if turns > 3:
            return total + 100 * last + at if a > 0 else total


def changes(w, a, b, x) -> int:
    places = w.places
    for at in range(w.size):
        w.numbers[at] *= x
        places[places[at] % w.size] += a
        w.real[at] = w.small[at] + 1
    swap(w.numbers, 0, w.size - 1)
    return first_above(w.numbers, 0.5)


def swap(values, one, other) -> None:
    values[one], values[other] = values[other], values[one]


def first_above(values, least) -> int:
    for at in range(len(values)):
        if values[at] > least:
            return at
    return -1


@pytest.mark.parametrize("function", [numbers, choices, loops, changes])
@settings(max_examples=25, deadline=None)
@given(a=st.integers(-9, 9), b=st.integers(-9, 9).filter(bool), x=st.floats(-9, 9))
def test_python_and_compiled_code_agree_to_the_last_bit(function, a, b, x):
    compiled, interpreted = arrays(), arrays()
    assert call_compiled(function, compiled, a, b, x) == function(interpreted, a, b, x)
    for one, other in zip(compiled, interpreted, strict=True):
        assert np.array(one).tobytes() == np.array(other).tobytes()


def makes_a_list(x) -> int:
    return [x]


def names_an_argument(x) -> float:
    return max(x, key=x)


def has_two_types(x) -> float:
    if x > 0:
        x = (x, x)
    return x


def returns_another_type(x) -> int:
    return x


@pytest.mark.parametrize("function", [makes_a_list, names_an_argument, has_two_types, returns_another_type])
def test_what_is_not_of_the_language_is_refused(function):
    with pytest.raises(NotImplementedError, match="not of the language"):
        call_compiled(function, 1.0)


@pytest.mark.parametrize("element", [np.uint32, np.int32, bool])
def test_elements_that_cannot_be_changed_or_read_are_refused(element):
    with pytest.raises(NotImplementedError, match="values"):
        call_compiled(swap, np.zeros(4, element), 0, 1)


def test_an_array_with_gaps_is_refused():
    with pytest.raises(ValueError, match="gaps"):
        call_compiled(swap, np.zeros(8)[::2], 0, 1)


def test_a_child_compiles_that_was_forked_while_a_thread_compiled():
    types, has_ended = itertools.product((1, 1.0), repeat=10), threading.Event()

    def compile_until_the_end():
        while not has_ended.is_set():
            call_compiled(sum_of, *next(types))

    thread = threading.Thread(target=compile_until_the_end)
    thread.start()
    children = []
    for _ in range(5):
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(240)  # ends a child that waits for a thread of its parent
            try:
                os._exit(call_compiled(sum_of, *range(10)) != 45.0)
            finally:
                os._exit(1)
        children.append(child)
    states = [os.waitpid(child, 0)[1] for child in children]
    has_ended.set()
    thread.join()
    assert states == [0] * 5


def sum_of(a, b, c, d, e, f, g, h, i, j) -> float:
    return a + b + c + d + e + f + g + h + i + j


def plans_of(seed):
    """Return the frontier and two plans of a random problem; an error if the switches leave no time."""
    random = np.random.default_rng(seed)
    name = ("one_f_one_b", "gpipe", "zb_h1")[seed % 3]
    stages, microbatches = int(random.integers(2, 5)), int(random.integers(2, 7))
    profile = smooth_profile(stages, clocks=8, seed=seed, kinds=SPLIT if name == "zb_h1" else WHOLE)
    frontier = Frontier.from_profile(profile, getattr(schedules, name)(stages, microbatches))
    asked = {"slowdown_factor": 1.0 + 0.2 * random.random(), "effort": 0.02}
    plans = [frontier.times_seconds.tolist(), frontier.energies_joules.tolist(), make_plan(frontier, **asked)]
    try:
        plans.append(make_plan(frontier, switch_seconds=0.005, dwell_seconds=(0.0, 0.2)[seed % 2], **asked))
    except UsageError as error:
        plans.append(str(error))
    return plans


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 12), marks=pytest.mark.long)])
def test_plans_do_not_depend_on_the_compiler(seeds, monkeypatch):
    compiled = [plans_of(seed) for seed in seeds]
    assert has_compiler()
    monkeypatch.setattr("zeus_core.pipeline.planner.loops.has_compiler", lambda: False)
    assert [plans_of(seed) for seed in seeds] == compiled
