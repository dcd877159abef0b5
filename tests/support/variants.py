"""Variants of a test, most of them for the long tests."""

import pytest


def long_but_first(variants, count=1):
    """Return the parameters of a test: the first `count` variants run by default, and the others in the long tests.

    A tuple is a variant of several arguments.
    """
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=[pytest.mark.long] * (place >= count))
        for place, one in enumerate(variants)
    ]
