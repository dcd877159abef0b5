"""Work in a process of its own."""

import os

import pytest

from zeus_core.errors import UsageError, ZeusError
from zeus_core.optimizer.pipeline_frequency import apart
from zeus_core.optimizer.pipeline_frequency.apart import run_apart
from zeus_core.optimizer.pipeline_frequency.settings import PipelineFrequencySettings


def test_a_function_returns_from_another_process():
    assert run_apart(os.getpid) != os.getpid()
    assert run_apart(divmod, 7, 3) == (2, 1)


def test_what_it_raises_is_raised_here():
    with pytest.raises(UsageError, match=r"slowdown_factor is 0\.5"):
        run_apart(PipelineFrequencySettings, 0.5)


def test_what_it_prints_is_no_reply(capfd):
    assert run_apart(print, "hello") is None
    assert capfd.readouterr() == ("", "hello\n")


def test_a_process_that_dies_is_an_error():
    with pytest.raises(ZeusError, match="process of its own"):
        run_apart(os._exit, 1)
    with pytest.raises(ZeusError, match="process of its own"):
        run_apart(os.abort)


def test_a_program_that_cannot_be_started_is_an_error(monkeypatch):
    monkeypatch.setattr(apart.sys, "executable", "/nowhere/python")
    with pytest.raises(ZeusError, match="nowhere"):
        run_apart(os.getpid)


def test_files_where_training_is_started_do_not_get_in_the_way(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise RuntimeError('not the one of Python')")
    monkeypatch.chdir(tmp_path)
    assert run_apart(divmod, 7, 3) == (2, 1)
