"""Restoring at the end of a process, tried on real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import zeus_core

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX signals and processes")

# Each test runs a process of its own, which says in a file what happened in it. Signals start out as in a shell.
PRELUDE = """
import os, signal, sys, threading, time
from zeus_core.process.restore_registry import RestoreRegistry

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

def say(word):
    with open(sys.argv[1], "a") as file:
        print(word, file=file)

def get(signal_number):
    os.kill(os.getpid(), signal_number)
    time.sleep(0.05)

def handle(signal_number, frame):
    say("handled")

registry = RestoreRegistry()

def restore():
    say("restored")

def other():
    say("other")
"""


@pytest.fixture
def run(tmp_path):
    """Run a program; returns its exit status (negative: the signal it died by) and what it said."""

    def run_program(program: str) -> tuple[int, list[str]]:
        said = tmp_path / "said"
        said.write_text("")
        ended = subprocess.run(
            [sys.executable, "-c", PRELUDE + program, str(said)],
            env={**os.environ, "PYTHONPATH": str(Path(zeus_core.__file__).parents[1])},
            stderr=subprocess.DEVNULL,
            timeout=240,
            check=False,
        )
        return ended.returncode, said.read_text().split()

    return run_program


class TestEndsOfAProcess:
    def test_a_normal_end(self, run):
        assert run("registry.add(restore)") == (0, ["restored"])

    def test_an_exception(self, run):
        assert run("registry.add(restore); raise RuntimeError") == (1, ["restored"])

    def test_sys_exit(self, run):
        assert run("registry.add(restore); sys.exit(3)") == (3, ["restored"])

    def test_control_c(self, run):
        assert run("registry.add(restore); get(signal.SIGINT); say('alive')") == (-signal.SIGINT, ["restored"])

    @pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
    def test_a_signal_that_ends_the_process_still_does_and_looks_like_it(self, run, name):
        status, said = run(f"registry.add(restore); get(signal.{name}); say('alive')")
        assert (status, said) == (-getattr(signal, name), ["restored"])

    def test_a_signal_while_the_main_thread_waits(self, run):
        program = "registry.add(restore); threading.Timer(0.1, get, [signal.SIGTERM]).start(); time.sleep(20)"
        assert run(program) == (-signal.SIGTERM, ["restored"])

    def test_adding_twice_restores_once(self, run):
        assert run("registry.add(restore); registry.add(restore)") == (0, ["restored"])

    def test_nothing_happens_while_nothing_is_registered(self, run):
        assert run("") == (0, [])
        assert run("get(signal.SIGTERM)") == (-signal.SIGTERM, [])

    def test_added_in_another_thread_it_restores_at_normal_ends_without_signal_handlers(self, run):
        program = """
adding = threading.Thread(target=registry.add, args=[restore])
adding.start()
adding.join()
say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
        assert run(program) == (0, ["True", "restored"])


class TestSignalsSomeoneElseHandles:
    def test_an_earlier_handler_is_called_after_restoring_and_the_process_lives_on(self, run):
        status, said = run(
            "signal.signal(signal.SIGTERM, handle); registry.add(restore); get(signal.SIGTERM); say('alive')"
        )
        assert status == 0
        assert said[:3] == ["restored", "handled", "alive"]

    def test_a_handler_from_before_that_exits_decides_the_exit_status(self, run):
        status, said = run(
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); registry.add(restore); get(signal.SIGTERM)"
        )
        assert status == 5
        assert said[0] == "restored"

    def test_an_ignored_signal_stays_ignored(self, run):
        status, said = run(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); registry.add(restore); get(signal.SIGTERM); say('on')"
        )
        assert (status, said) == (0, ["on", "restored"])

    def test_a_signal_that_was_set_to_its_default_since_is_caught_again(self, run):
        program = "registry.add(restore); signal.signal(signal.SIGTERM, signal.SIG_DFL); registry.add(restore)"
        assert run(program + "; get(signal.SIGTERM)") == (-signal.SIGTERM, ["restored"])

    def test_signals_can_be_caught_again_without_a_change(self, run):
        program = "registry.add(restore); signal.signal(signal.SIGTERM, signal.SIG_DFL); registry.catch_signals()"
        assert run(program + "; get(signal.SIGTERM)") == (-signal.SIGTERM, ["restored"])

    def test_signals_are_left_alone_while_nothing_is_registered(self, run):
        program = "registry.catch_signals(); say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
        assert run(program) == (0, ["True"])

    def test_a_handler_from_later_that_passes_on_reaches_the_registry(self, run):
        program = """
registry.add(restore)
previous = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *arguments: (say("later"), previous(*arguments)))
get(signal.SIGTERM)
"""
        assert run(program) == (-signal.SIGTERM, ["later", "restored"])

    def test_a_handler_from_later_is_wrapped_when_something_else_is_registered(self, run):
        program = """
registry.add(restore)
signal.signal(signal.SIGTERM, handle)
registry.add(restore)
say(signal.getsignal(signal.SIGTERM) is handle)
registry.add(other)
get(signal.SIGTERM)
"""
        status, said = run(program)
        assert (status, said[0], said[3]) == (0, "True", "handled")
        assert sorted(said[1:3]) == ["other", "restored"]

    def test_a_later_handler_is_wrapped_when_something_is_added_after_all_left(self, run):
        program = """
registry.add(restore)
signal.signal(signal.SIGTERM, handle)
registry.remove(restore)
registry.add(restore)
get(signal.SIGTERM)
say("alive")
registry.remove(restore)
say(signal.getsignal(signal.SIGTERM) is handle)
"""
        assert run(program) == (0, ["restored", "handled", "alive", "True"])


class TestFork:
    def test_a_child_that_exits_restores_nothing(self, run):
        program = """
registry.add(restore)
child = os.fork()
if child == 0:
    say("child")
    sys.exit(0)
os.waitpid(child, 0)
say("parent")
"""
        assert run(program) == (0, ["child", "parent", "restored"])

    def test_a_child_that_is_terminated_restores_nothing_and_dies_by_the_signal(self, run):
        program = """
registry.add(restore)
child = os.fork()
if child == 0:
    get(signal.SIGTERM)
    say("alive")
    os._exit(0)
_, status = os.waitpid(child, 0)
say(os.waitstatus_to_exitcode(status))
"""
        assert run(program) == (0, ["-15", "restored"])

    def test_a_child_that_adds_something_itself_restores_it(self, run):
        program = """
registry.add(restore)
child = os.fork()
if child == 0:
    registry.add(restore)
    get(signal.SIGTERM)
os.waitpid(child, 0)
say("parent")
"""
        assert run(program) == (0, ["restored", "parent", "restored"])


class TestRemove:
    def test_nothing_is_restored_any_more(self, run):
        assert run("registry.add(restore); registry.remove(restore)") == (0, [])
        assert run("registry.add(restore); registry.remove(restore); get(signal.SIGTERM)") == (-signal.SIGTERM, [])

    @pytest.mark.parametrize("previous", ["signal.SIG_DFL", "handle", "signal.SIG_IGN"])
    def test_the_handler_from_before_is_back(self, run, previous):
        program = f"""
signal.signal(signal.SIGTERM, {previous})
registry.add(restore)
registry.remove(restore)
say(signal.getsignal(signal.SIGTERM) == {previous})
"""
        assert run(program) == (0, ["True"])

    def test_removing_what_was_not_added_does_no_harm(self, run):
        assert run("registry.remove(restore); registry.remove(restore)") == (0, [])

    def test_it_can_be_added_again(self, run):
        assert run("registry.add(restore); registry.remove(restore); registry.add(restore)") == (0, ["restored"])
        program = "registry.add(restore); registry.remove(restore); registry.add(restore); get(signal.SIGTERM)"
        assert run(program) == (-signal.SIGTERM, ["restored"])

    def test_a_later_handler_stays_and_passes_through_to_the_earlier_one(self, run):
        program = """
signal.signal(signal.SIGTERM, handle)
registry.add(restore)
previous = signal.getsignal(signal.SIGTERM)
later = lambda *arguments: (say("later"), previous(*arguments))
signal.signal(signal.SIGTERM, later)
registry.remove(restore)
say(signal.getsignal(signal.SIGTERM) is later)
get(signal.SIGTERM)
"""
        assert run(program) == (0, ["True", "later", "handled"])

    def test_a_signal_handler_may_remove_the_same_meanwhile(self, run):
        program = """
registry.add(restore)
set_handler = signal.signal
def interrupted(*arguments):
    signal.signal = set_handler
    registry.remove(restore)
    set_handler(*arguments)
signal.signal = interrupted
registry.remove(restore)
say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
        assert run(program) == (0, ["True"])

    def test_removed_in_another_thread_signals_are_only_passed_on(self, run):
        program = """
registry.add(restore)
removing = threading.Thread(target=registry.remove, args=[restore])
removing.start()
removing.join()
get(signal.SIGTERM)
say("alive")
"""
        assert run(program) == (-signal.SIGTERM, [])

    def test_removed_in_another_thread_it_can_be_added_again(self, run):
        program = """
registry.add(restore)
removing = threading.Thread(target=registry.remove, args=[restore])
removing.start()
removing.join()
registry.add(restore)
get(signal.SIGTERM)
say("alive")
"""
        assert run(program) == (-signal.SIGTERM, ["restored"])


class TestSeveral:
    BOTH = "registry.add(restore); registry.add(other); "

    def test_both_are_restored_at_a_signal(self, run):
        status, said = run(self.BOTH + "get(signal.SIGTERM)")
        assert (status, sorted(said)) == (-signal.SIGTERM, ["other", "restored"])

    def test_they_share_one_handler(self, run):
        program = """
registry.add(restore)
handler = signal.getsignal(signal.SIGTERM)
registry.add(other)
say(signal.getsignal(signal.SIGTERM) is handler)
registry.remove(restore)
say(signal.getsignal(signal.SIGTERM) is handler)
registry.remove(other)
say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
        assert run(program) == (0, ["True", "True", "True"])

    @pytest.mark.parametrize("registered", ["restore, interrupted", "interrupted, restore"])
    def test_another_control_c_keeps_none_from_being_restored(self, run, registered):
        program = f"""
attempts = []
def interrupted():
    attempts.append(1)
    if len(attempts) == 1:
        raise KeyboardInterrupt
    say("tried_again")
for function in ({registered}):
    registry.add(function)
"""
        status, said = run(program)
        assert status == 0
        assert {"restored", "tried_again"} == set(said)

    @pytest.mark.parametrize(("removed", "left"), [("restore", "other"), ("other", "restored")])
    def test_one_that_is_removed_leaves_the_other(self, run, removed, left):
        assert run(self.BOTH + f"registry.remove({removed}); get(signal.SIGTERM)") == (-signal.SIGTERM, [left])

    @pytest.mark.parametrize("order", ["restore, other", "other, restore"])
    def test_both_removed_in_any_order_let_the_signal_through(self, run, order):
        program = self.BOTH + f"[registry.remove(function) for function in ({order})]; get(signal.SIGTERM)"
        assert run(program) == (-signal.SIGTERM, [])
