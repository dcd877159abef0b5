"""A method that is called again and again, in virtual time."""

import weakref

import pytest

from zeus_core.testing import VirtualTime
from zeus_core.training.activities._repeated_call import RepeatedCall


class Reader:
    def __init__(self, time_source, wait_seconds=10.0):
        self.time_source, self.wait_seconds, self.calls, self.on_call = time_source, wait_seconds, [], lambda: None
        self.repeated = RepeatedCall(time_source, weakref.WeakMethod(self.read))
        self.repeated.start()

    def read(self):
        self.calls.append(self.time_source.now())
        self.on_call()
        return self.wait_seconds


@pytest.fixture
def reader():
    return Reader(VirtualTime(0.0))


def test_it_is_called_after_the_seconds_that_it_returns(reader):
    reader.time_source.advance(25.0)
    assert reader.calls == pytest.approx([0.0, 10.0, 20.0], abs=0.01)


def test_it_is_called_at_once_when_woken_and_then_as_returned(reader):
    """An edge of a part is read when it happens; before, the counter was asked for at each of its updates."""
    reader.time_source.advance(4.0)
    reader.repeated.wake()
    reader.time_source.advance(12.0)
    assert reader.calls == pytest.approx([0.0, 4.0, 14.0], abs=0.01)


def test_it_is_called_no_more_when_it_is_stopped(reader):
    reader.time_source.advance(4.0)
    reader.repeated.stop()
    reader.repeated.wake()
    reader.time_source.advance(50.0)
    assert len(reader.calls) == 1


def test_it_is_called_no_more_when_it_is_stopped_while_it_runs(reader):
    reader.on_call = lambda: reader.repeated.stop()
    reader.time_source.advance(50.0)
    assert len(reader.calls) == 1


def test_it_is_called_no_more_once_its_object_is_gone():
    reader = Reader(VirtualTime(0.0))
    time_source, calls = reader.time_source, reader.calls
    del reader
    time_source.advance(50.0)
    assert not calls
