r"""The child process of `zeus-core run`: a command that runs as if the shell had started it directly.

The child inherits everything: standard streams, open files, environment, the process group and with it the terminal.
It is in our process group, and gets what the terminal sends: Ctrl-C, Ctrl-\, Ctrl-Z, a new window size. So the rule
for a signal that reaches us is:

    the kernel sent it for the terminal (si_code is SI_KERNEL)   the child has it too: do not send it again
    a process sent it (kill, a scheduler, a supervisor)          pass it on
    SIGHUP because the terminal is gone, and we lead the session pass it on: only the leader has it

The child has no process group of its own. That would need the terminal handed over and back (tcsetpgrp), and would
hide the child from Ctrl-Z and from `kill -9 -PGID`. One case remains: a signal that a process sends with kill(2) to the
whole group, or to all processes of a job one by one, reaches the child twice, directly and from us. The two cannot be
told apart, and a lost SIGTERM would be worse than a second one.

To read si_code, signals are blocked and waited for; they are not handled. They stay blocked in threads that are started
meanwhile. The child starts with our original signal mask.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from zeus_core.errors import ZeusError

_SI_KERNEL = 0x80  # <asm-generic/siginfo.h>
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # the exit codes of shells

_FROM_TERMINAL = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP, signal.SIGCONT, signal.SIGWINCH}
)
_PASSED_ON = _FROM_TERMINAL | {
    *(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGURG, signal.SIGIO),
    *(signal.SIGPWR, signal.SIGXCPU, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)),
}
_WAITED_FOR = _PASSED_ON | {signal.SIGCHLD}
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_FIRST_LOOK_SECONDS, _LONGEST_SECONDS = 0.5, 64.0  # from one look at the child's processes to the next: twice as long


class CommandError(ZeusError):
    """The command could not be started.

    Args:
        message: Why it could not be started.
        exit_code: The exit code that a shell would return.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def blocked_signals() -> Iterator[set[int]]:
    """Keep signals for `wait_for`. Yield the original signal mask, and restore it at the end.

    Signals that `wait_for` has not taken are dropped at the end: they came for a child that had already ended.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would let the child's exit code vanish
    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    try:
        yield {int(number) for number in original_mask}
    finally:
        while signal.sigtimedwait(_WAITED_FOR, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, original_mask)


def spawn(
    command: Sequence[str],
    mask: set[int],
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Start a command, and return its process id.

    Args:
        command: The name or path of the program, and its arguments.
        mask: The signals that are blocked when it starts.
        environment: Its environment.

    Raises:
        CommandError: There is no such program, or it cannot be executed.
    """
    if not command[0]:
        raise CommandError("'': command not found", _NOT_FOUND)
    if any("\0" in word for word in command):
        raise CommandError("the command contains a NUL character, which no program can be given", _NOT_FOUND)
    try:
        return _spawn(command, mask, environment)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without "#!" line: shells run it with sh
            script = ["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]]
            return _spawn(script, mask, environment)
        is_missing = error.errno == errno.ENOENT
        problem = "command not found" if is_missing else f"cannot be executed: {os.strerror(error.errno or 0)}"
        raise CommandError(f"{command[0]}: {problem}", _NOT_FOUND if is_missing else _NOT_EXECUTABLE) from error


def wait_for(process_id: int, look: Callable[[], object] | None = None) -> int:
    """Wait until the child has ended, pass signals on by the rule above, and return its wait status.

    Args:
        process_id: The child.
        look: Called now and then meanwhile: ever more seldom, as what is missed early lasts long later.
    """
    seconds = _FIRST_LOOK_SECONDS
    while True:
        received = signal.sigwaitinfo(_WAITED_FOR) if look is None else signal.sigtimedwait(_WAITED_FOR, seconds)
        if received is None:
            assert look is not None
            look()
            seconds = min(2 * seconds, _LONGEST_SECONDS)
            continue
        if received.si_signo != signal.SIGCHLD:
            _pass_on(received, process_id)
            continue
        ended, status = os.waitpid(process_id, os.WNOHANG)
        if ended:
            return status


def end_like(status: int) -> int:
    """Return the exit code of a child with this wait status; if a signal killed it, die of the same signal."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.suppress(OSError, ValueError):  # the child's core file is the one of interest
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # signals do not kill the first process of a container


def _spawn(command: Sequence[str], mask: set[int], environment: Mapping[str, str]) -> int:
    environment = {name: value for name, value in environment.items() if name}  # Python refuses to pass on "=value"
    return os.posix_spawnp(command[0], list(command), environment, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON)


def _pass_on(received: signal.struct_siginfo, process_id: int) -> None:
    number = received.si_signo
    is_from_terminal = received.si_code == _SI_KERNEL and number in _FROM_TERMINAL
    is_for_leader = number == signal.SIGHUP and os.getsid(0) == os.getpid()
    if not is_from_terminal or is_for_leader:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process_id, number)
    if number == signal.SIGTSTP:
        _stop()


def _stop() -> None:
    """Stop as SIGTSTP would have stopped us, until we are continued."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
