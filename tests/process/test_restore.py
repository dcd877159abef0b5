"""Undoing at the end of a process, tried on real processes."""

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
from zeus_core._process.restore import ExitGuard

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

guard = ExitGuard(lambda: say("undone"))
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
            timeout=30,
            check=False,
        )
        return ended.returncode, said.read_text().split()

    return run_program


class TestEndsOfAProcess:
    def test_a_normal_end(self, run):
        assert run("guard.arm()") == (0, ["undone"])

    def test_an_exception(self, run):
        assert run("guard.arm(); raise RuntimeError") == (1, ["undone"])

    def test_sys_exit(self, run):
        assert run("guard.arm(); sys.exit(3)") == (3, ["undone"])

    def test_control_c(self, run):
        assert run("guard.arm(); get(signal.SIGINT); say('alive')") == (-signal.SIGINT, ["undone"])

    @pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
    def test_a_signal_that_ends_the_process_still_does_and_looks_like_it(self, run, name):
        status, said = run(f"guard.arm(); get(signal.{name}); say('alive')")
        assert (status, said) == (-getattr(signal, name), ["undone"])

    def test_a_signal_while_the_main_thread_waits(self, run):
        program = "guard.arm(); threading.Timer(0.1, get, [signal.SIGTERM]).start(); time.sleep(20)"
        assert run(program) == (-signal.SIGTERM, ["undone"])

    def test_arming_twice_undoes_once(self, run):
        assert run("guard.arm(); guard.arm()") == (0, ["undone"])

    def test_nothing_happens_without_arming(self, run):
        assert run("") == (0, [])
        assert run("get(signal.SIGTERM)") == (-signal.SIGTERM, [])

    def test_armed_in_another_thread_it_undoes_at_a_normal_end_and_leaves_signals_alone(self, run):
        program = """
arming = threading.Thread(target=guard.arm)
arming.start()
arming.join()
say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
        assert run(program) == (0, ["True", "undone"])


class TestSignalsSomeoneElseHandles:
    def test_a_handler_from_before_is_called_after_the_undoing_and_the_process_lives_on(self, run):
        status, said = run("signal.signal(signal.SIGTERM, handle); guard.arm(); get(signal.SIGTERM); say('alive')")
        assert status == 0
        assert said[:3] == ["undone", "handled", "alive"]

    def test_a_handler_from_before_that_exits_decides_the_exit_status(self, run):
        status, said = run("signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); guard.arm(); get(signal.SIGTERM)")
        assert status == 5
        assert said[0] == "undone"

    def test_an_ignored_signal_stays_ignored(self, run):
        status, said = run("signal.signal(signal.SIGTERM, signal.SIG_IGN); guard.arm(); get(signal.SIGTERM); say('on')")
        assert (status, said) == (0, ["on", "undone"])

    def test_a_signal_that_was_set_to_its_default_since_is_caught_again(self, run):
        program = "guard.arm(); signal.signal(signal.SIGTERM, signal.SIG_DFL); guard.arm(); get(signal.SIGTERM)"
        assert run(program) == (-signal.SIGTERM, ["undone"])

    def test_a_handler_from_later_that_passes_on_reaches_the_guard(self, run):
        program = """
guard.arm()
previous = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *arguments: (say("later"), previous(*arguments)))
get(signal.SIGTERM)
"""
        assert run(program) == (-signal.SIGTERM, ["later", "undone"])


class TestFork:
    def test_a_child_that_exits_does_not_undo(self, run):
        program = """
guard.arm()
child = os.fork()
if child == 0:
    say("child")
    sys.exit(0)
os.waitpid(child, 0)
say("parent")
"""
        assert run(program) == (0, ["child", "parent", "undone"])

    def test_a_child_that_is_terminated_does_not_undo_and_dies_by_the_signal(self, run):
        program = """
guard.arm()
child = os.fork()
if child == 0:
    get(signal.SIGTERM)
    say("alive")
    os._exit(0)
_, status = os.waitpid(child, 0)
say(os.waitstatus_to_exitcode(status))
"""
        assert run(program) == (0, ["-15", "undone"])

    def test_a_child_that_arms_the_guard_itself_undoes(self, run):
        program = """
guard.arm()
child = os.fork()
if child == 0:
    guard.arm()
    get(signal.SIGTERM)
os.waitpid(child, 0)
say("parent")
"""
        assert run(program) == (0, ["undone", "parent", "undone"])


class TestDisarm:
    def test_nothing_is_undone_any_more(self, run):
        assert run("guard.arm(); guard.disarm()") == (0, [])
        assert run("guard.arm(); guard.disarm(); get(signal.SIGTERM)") == (-signal.SIGTERM, [])

    @pytest.mark.parametrize("previous", ["signal.SIG_DFL", "handle", "signal.SIG_IGN"])
    def test_the_handler_from_before_is_back(self, run, previous):
        program = f"""
signal.signal(signal.SIGTERM, {previous})
guard.arm()
guard.disarm()
say(signal.getsignal(signal.SIGTERM) == {previous})
"""
        assert run(program) == (0, ["True"])

    def test_disarming_without_arming_does_no_harm(self, run):
        assert run("guard.disarm(); guard.disarm()") == (0, [])

    def test_a_guard_can_be_armed_again(self, run):
        assert run("guard.arm(); guard.disarm(); guard.arm()") == (0, ["undone"])
        program = "guard.arm(); guard.disarm(); guard.arm(); get(signal.SIGTERM)"
        assert run(program) == (-signal.SIGTERM, ["undone"])

    def test_a_handler_from_later_stays_and_passes_through_to_the_one_from_before(self, run):
        program = """
signal.signal(signal.SIGTERM, handle)
guard.arm()
previous = signal.getsignal(signal.SIGTERM)
later = lambda *arguments: (say("later"), previous(*arguments))
signal.signal(signal.SIGTERM, later)
guard.disarm()
say(signal.getsignal(signal.SIGTERM) is later)
get(signal.SIGTERM)
"""
        assert run(program) == (0, ["True", "later", "handled"])

    def test_disarmed_in_another_thread_it_only_passes_signals_on(self, run):
        program = """
guard.arm()
disarming = threading.Thread(target=guard.disarm)
disarming.start()
disarming.join()
get(signal.SIGTERM)
say("alive")
"""
        assert run(program) == (-signal.SIGTERM, [])

    def test_disarmed_in_another_thread_it_can_be_armed_again(self, run):
        program = """
guard.arm()
disarming = threading.Thread(target=guard.disarm)
disarming.start()
disarming.join()
guard.arm()
get(signal.SIGTERM)
say("alive")
"""
        assert run(program) == (-signal.SIGTERM, ["undone"])


class TestTwoGuards:
    OTHER = 'other = ExitGuard(lambda: say("other"))\nguard.arm(); other.arm()\n'

    def test_both_undo_at_a_signal(self, run):
        status, said = run(self.OTHER + "get(signal.SIGTERM)")
        assert (status, sorted(said)) == (-signal.SIGTERM, ["other", "undone"])

    @pytest.mark.parametrize(("disarmed", "left"), [("guard", "other"), ("other", "undone")])
    def test_one_that_is_disarmed_leaves_the_other_armed(self, run, disarmed, left):
        assert run(self.OTHER + f"{disarmed}.disarm(); get(signal.SIGTERM)") == (-signal.SIGTERM, [left])

    @pytest.mark.parametrize("order", ["guard.disarm(); other.disarm()", "other.disarm(); guard.disarm()"])
    def test_both_disarmed_in_any_order_let_the_signal_through(self, run, order):
        assert run(self.OTHER + order + "; get(signal.SIGTERM)") == (-signal.SIGTERM, [])

    def test_one_armed_again_above_the_other_still_ends_the_process(self, run):
        status, said = run(self.OTHER + "guard.disarm(); guard.arm(); get(signal.SIGTERM); say('alive')")
        assert status == -signal.SIGTERM
        assert set(said) == {"other", "undone"}
