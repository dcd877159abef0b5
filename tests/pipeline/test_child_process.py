"""Work in a process of its own."""

import os
import signal

import pytest

from zeus_core.errors import UsageError, ZeusError
from zeus_core.pipeline import child_process as child
from zeus_core.pipeline.child_process import run_in_child
from zeus_core.pipeline.optimizer.frequency_settings import PipelineFrequencySettings
from zeus_core.process.lock import process_id


def test_a_function_returns_from_another_process():
    assert run_in_child(os.getpid) != os.getpid()
    assert run_in_child(divmod, 7, 3) == (2, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_knows_its_own_number():
    child_id = os.fork()
    if child_id == 0:
        os._exit(process_id() != os.getpid())
    assert os.waitpid(child_id, 0)[1] == 0
    assert process_id() == os.getpid()


def test_what_it_raises_is_raised_here():
    with pytest.raises(UsageError, match=r"slowdown_factor is 0\.5"):
        run_in_child(PipelineFrequencySettings, 0.5)


def test_what_it_prints_is_no_reply(capfd):
    assert run_in_child(print, "hello") is None
    assert capfd.readouterr() == ("", "hello\n")


def test_a_process_that_dies_is_an_error_that_says_how():
    with pytest.raises(ZeusError, match="separate process, which ended with code 3 and no result"):
        run_in_child(os._exit, 3)
    with pytest.raises(ZeusError, match=f"separate process, which was ended by signal {signal.SIGABRT:d}"):
        run_in_child(os.abort)


class UnpicklableError(Exception):
    def __reduce__(self):
        raise TypeError("cannot be pickled")


class PeculiarError(Exception):
    def __init__(self, reason, more):
        super().__init__(reason)


def raise_peculiar():
    raise PeculiarError("the reason", "more")


def raise_unpicklable():
    raise UnpicklableError("the reason")


def test_an_error_that_cannot_be_passed_on_is_told_all_the_same():
    for function in (raise_unpicklable, raise_peculiar):
        with pytest.raises(ZeusError, match="the reason"):
            run_in_child(function)


def test_a_program_that_cannot_be_started_is_an_error(monkeypatch):
    monkeypatch.setattr(child.sys, "executable", "/nowhere/python")
    with pytest.raises(ZeusError, match="nowhere"):
        run_in_child(os.getpid)


def test_files_where_training_is_started_do_not_get_in_the_way(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise RuntimeError('not the one of Python')")
    monkeypatch.chdir(tmp_path)
    assert run_in_child(divmod, 7, 3) == (2, 1)
