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
from zeus_core.pipeline.planner.loops._translation import translate
from zeus_core.pipeline.planner.loops.compiled import call_compiled, has_compiler

SHIFTS = (1, 2, 4, -1)
SCALE = 0.1


@pytest.fixture(autouse=True)
def llvm(monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.delenv("ZEUS_WITHOUT_LLVM", raising=False)


class Part(NamedTuple):
    numbers: np.ndarray
    places: np.ndarray
    is_open: np.ndarray


class Whole(NamedTuple):
    size: int
    part: Part
    scale: float
    small: np.ndarray


def whole():
    part = Part(np.linspace(-1, 2, 7), np.array([6, 5, 4, 3, 2, 1, 0]), np.array([True, False] * 3 + [True]))
    return Whole(7, part, 0.3, np.arange(7, dtype=np.uint32))


def numbers(w, a, b, x):
    quotient, rest = a // b, a % b
    bits = ((a << 3) + (b & 6)) >> 2
    x = -x * SCALE + a / b - 2
    return quotient, rest, bits, -a, x, float(a), int(x), bool(b), abs_of(x)


def abs_of(x):
    return x if x >= 0 else -x


def choices(w, a, b, x):
    low, high = (a, b) if a < b else (b, a)
    is_between = (low <= 0 and high > 0) or (a == b and not x > 0.5)
    found = a or b
    place, best = min(a, 3, b), max(x, a, 0.25)
    return is_between, found, place, best, a in (1, b + 1, -3), (a and b) + 1, curves(a, x)


def curves(a, x):
    return math.exp(min(x, 5.0)) + math.log(x * x + 0.5) + 0.03**x + (a * a) ** 0.7


def loops(w, a, b, x):
    """A docstring."""
    total, turns, last = 0, 0, (0, 0.0)
    for at in range(len(w.part.numbers) - 1, -1, -2):
        if w.part.is_open[at] and w.part.numbers[at] < x:
            continue
        total += w.part.places[at] * SHIFTS[at % 4]
        last = (at, w.part.numbers[at])
    for shift in (a, b, 2):
        if shift > 4:
            break
        for inner in range(shift):
            total = total + inner * w.scale  # a float from now on
    while True:
        turns += 1
        if turns > 3:
            return total, turns, last[0], last[1]


def changes(w, a, b, x):
    part = w.part
    for at in range(w.size):
        part.numbers[at] *= x
        part.is_open[at] = at == 0 or part.numbers[at - 1] > 0.1
        part.places[part.places[at] % w.size] += a
        w.small[at] = w.small[at] + 1
    swap(part.numbers, 0, w.size - 1)
    return first_open(w)


def swap(values, one, other):
    values[one], values[other] = values[other], values[one]


def first_open(w):
    for at in range(w.size):
        if w.part.is_open[at]:
            return at
    return -1


@pytest.mark.parametrize("function", [numbers, choices, loops, changes])
@settings(max_examples=25, deadline=None)
@given(a=st.integers(-9, 9), b=st.integers(-9, 9).filter(bool), x=st.floats(-9, 9))
def test_python_and_compiled_code_agree_to_the_last_bit(function, a, b, x):
    compiled, interpreted = whole(), whole()
    found, wanted = call_compiled(function, compiled, a, b, x), function(interpreted, a, b, x)
    found, wanted = (value if isinstance(value, tuple) else (value,) for value in (found, wanted))
    assert np.array(found, float).tobytes() == np.array(wanted, float).tobytes()
    for one, other in zip(compiled.part, interpreted.part, strict=True):
        assert one.tobytes() == other.tobytes()
    assert compiled.small.tobytes() == interpreted.small.tobytes()


def makes_a_list(x):
    return [x]


def names_an_argument(x):
    return max(x, key=x)


def has_two_types(x):
    if x > 0:
        x = (x, x)
    return x


@pytest.mark.parametrize("function", [makes_a_list, names_an_argument, has_two_types])
def test_what_is_not_of_the_language_is_refused(function):
    with pytest.raises(NotImplementedError):
        translate(function, ("double",))


def test_an_array_with_gaps_is_refused():
    with pytest.raises(ValueError, match="gaps"):
        call_compiled(swap, np.zeros(8)[::2], 0, 1)


def test_a_child_compiles_that_was_forked_while_a_thread_compiled():
    types, has_ended = itertools.product((True, 1, 1.0), repeat=6), threading.Event()

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
                os._exit(call_compiled(sum_of, 1, 2, 3, 4, 5, 6) - 21)
            finally:
                os._exit(1)
        children.append(child)
    states = [os.waitpid(child, 0)[1] for child in children]
    has_ended.set()
    thread.join()
    assert states == [0] * 5


def sum_of(a, b, c, d, e, f):
    return a + b + c + d + e + f


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
    monkeypatch.setenv("ZEUS_WITHOUT_LLVM", "1")
    assert not has_compiler()
    assert [plans_of(seed) for seed in seeds] == compiled
