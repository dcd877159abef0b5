"""`zeus-core` in a real terminal, under a shell with job control."""

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.variants import long_but_first
from zeus_core.kinds import POWER_LIMIT
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import Ledger

# What an interactive shell does for one job in the foreground; a stopped job is continued once.
SHELL = """
    import fcntl, os, signal, sys, termios, time

    def states_of(job):
        states = set()
        for process_id in filter(str.isdecimal, os.listdir("/proc")):
            try:
                state, _, group = open(f"/proc/{process_id}/stat").read().rpartition(")")[2].split()[:3]
            except OSError:  # it has ended meanwhile
                continue
            if int(group) == job:
                states.add(state)
        return states

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(sys.argv[1], sys.argv[1:])
    _, status = os.waitpid(job, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        end = time.monotonic() + 240
        while (states := states_of(job)) != {"T"} and time.monotonic() < end:
            time.sleep(0.01)
        print("stopped by", signal.Signals(os.WSTOPSIG(status)).name, *sorted(states), flush=True)
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)
        _, status = os.waitpid(job, 0)
    print("shell saw", os.waitstatus_to_exitcode(status), flush=True)
"""


NO_SHELL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """A terminal with a shell that runs one command in the foreground.

    Args:
        command: What to run.
        environment: Of the shell.
        has_shell: Without one, the command leads the session, as the first process of `docker run -t` does.
        variables: Others of the environment.
    """

    def __init__(self, command, environment, has_shell=True, **variables):
        self._master, slave = os.openpty()
        script = textwrap.dedent(SHELL) if has_shell else NO_SHELL
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, command)],
            env={**environment, "TERM": "xterm", "COLUMNS": "100", **variables},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def type(self, keys):
        os.write(self._master, keys)

    def read_until(self, text):
        """Read until a pattern appears; until the end, if None. This ends even if others are printed for ever."""
        end = time.monotonic() + 240
        while text is None or not re.search(text, self.text):
            assert select.select([self._master], [], [], max(0.0, end - time.monotonic()))[0], self.text
            try:
                piece = os.read(self._master, 10_000)
            except OSError:  # everybody has left the terminal
                piece = b""
            if not piece:
                break
            self.text += piece.decode()
        assert text is None or re.search(text, self.text), self.text

    def read_to_the_end(self):
        self.read_until(None)
        return self.process.wait(timeout=240)

    def hang_up(self):
        if self._master is not None:
            os.close(self._master)
            self._master = None

    def close(self):
        self.hang_up()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(timeout=240)


@pytest.fixture
def open_terminal():
    terminals = []

    def make(program, *arguments, **options):
        terminals.append(Terminal(program.command(*arguments), program.environment, **options))
        return terminals[-1]

    yield make
    for terminal in terminals:
        terminal.close()


@pytest.mark.parametrize("has_shell", [True, False], ids=["under a shell", "as session leader"])
@pytest.mark.parametrize(
    ("key", "number"), long_but_first([(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)]), ids=["^C", "^\\"]
)
def test_a_key_that_sends_a_signal_reaches_the_command_once(
    on_nothing, counting_child, open_terminal, key, number, has_shell
):
    terminal = open_terminal(on_nothing, "run", "--", *counting_child, has_shell=has_shell)
    terminal.read_until("ready")
    terminal.type(key)
    code = terminal.read_to_the_end()
    assert f"received {number.value}\r\n" in terminal.text
    assert "exit code 7" in terminal.text
    assert "shell saw 7" in terminal.text if has_shell else code == 7


def test_ctrl_c_kills_a_command_without_a_handler_and_then_us(on_simulated, open_terminal):
    terminal = open_terminal(on_simulated, "run", "--", "sh", "-c", "echo ready; exec sleep 30")
    terminal.read_until("ready")
    terminal.type(b"\x03")
    terminal.read_to_the_end()
    assert "killed by SIGINT" in terminal.text
    assert "A40 (simulated)" in terminal.text
    assert "shell saw -2" in terminal.text


def test_ctrl_z_stops_both_and_the_shell_can_continue_them(on_nothing, open_terminal):
    terminal = open_terminal(on_nothing, "run", "--", "sh", "-c", "echo ready; read line; exit 3")
    terminal.read_until("ready")
    terminal.type(b"\x1a")
    terminal.read_until("stopped by SIGTSTP T\r\n")
    terminal.type(b"go on\n")
    terminal.read_to_the_end()
    assert "shell saw 3" in terminal.text


def test_the_command_can_read_from_the_terminal(on_nothing, open_terminal):
    terminal = open_terminal(on_nothing, "run", "--", "sh", "-c", "test -t 0 && echo ready && read x && echo got $x")
    terminal.read_until("ready")
    terminal.type(b"words\n")
    terminal.read_to_the_end()
    assert "got words" in terminal.text
    assert "shell saw 0" in terminal.text


def test_a_terminal_that_goes_away_takes_the_command_along(on_nothing, open_terminal, tmp_path):
    """The kernel tells only the leader of the session, who is us if there is no shell."""
    on_hangup = shlex.quote(f"echo hung up > {shlex.quote(str(tmp_path / 'heard'))}; exit 3")
    command = f"trap {on_hangup} HUP; echo ready; while :; do sleep 0.05; done"
    terminal = open_terminal(on_nothing, "run", "--", "sh", "-c", command, has_shell=False)
    terminal.read_until("ready")
    terminal.hang_up()
    assert terminal.process.wait(timeout=240) == 3
    assert (tmp_path / "heard").read_text() == "hung up\n"


def test_stopping_and_continuing_us_alone_stops_and_continues_the_command(on_nothing):
    # In a group of its own: the kernel stops no group without a parent that could continue it, as ours may be.
    process = on_nothing.start("run", "--", "sh", "-c", "echo $$; read line; exit 3", preexec_fn=os.setpgrp)
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGTSTP)
    assert wait_for_state("T", process.pid, child)
    process.send_signal(signal.SIGCONT)
    process.communicate("go on\n", timeout=240)
    assert process.returncode == 3


def wait_for_state(state, *process_ids):
    end = time.monotonic() + 240
    while time.monotonic() < end:
        if all(read_state(process_id) == state for process_id in process_ids):
            return True
        time.sleep(0.02)
    return False


def read_state(process_id):
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("command", ["power", "energy", "top"])
def test_ctrl_c_is_a_good_end_of_looking_on(on_simulated, open_terminal, command):
    terminal = open_terminal(on_simulated, command, "--period", "0.1")
    for text in (r" s; Ctrl-C ends\r", "A40 \\(simulated\\)"):
        terminal.read_until(text)
    terminal.type(b"\x03")
    terminal.read_to_the_end()
    assert "shell saw 0" in terminal.text
    assert "Traceback" not in terminal.text
    assert "these GPUs are simulated" in terminal.text


def test_a_terminal_that_cannot_be_drawn_on_gets_one_view_below_the_other(on_simulated, open_terminal):
    terminal = open_terminal(on_simulated, "power", "--period", "0.1", TERM="dumb")
    terminal.read_until(r"(?s)total +197 W\r\n\r\n.*total +197 W\r\n\r\n")
    terminal.type(b"\x03")
    terminal.read_to_the_end()
    assert "\x1b" not in terminal.text


def test_what_others_wrote_is_neither_markup_nor_obeyed(on_simulated, open_terminal, tmp_path):
    on_simulated.environment["ZEUS_LEDGER_DIR"] = str(tmp_path / "ledger")
    entry = LedgerEntry.of_this_process("GPU-1", "A board[/]", POWER_LIMIT, 300.0)
    named = replace(entry, program="[red]x[/red] :smile: [link=http://x]", job="\x1b]0;owned\x07\x1b[2J")
    Ledger(str(tmp_path / "ledger")).note(named)
    terminal = open_terminal(on_simulated, "top", "--period", "0.1", COLUMNS="300")
    terminal.read_until("controlled by.*\n.*since")
    terminal.type(b"\x03")
    terminal.read_to_the_end()
    assert "A board[/] (GPU-1)" in terminal.text
    assert "([red]x[/red] :smile: [link=http://x]) of user" in terminal.text
    assert "job ?]0;owned??[2J, since" in terminal.text
    assert "\x1b]" not in terminal.text
    assert "\x1b[2J" not in terminal.text
