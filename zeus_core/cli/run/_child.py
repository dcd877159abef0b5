r"""The command of `zeus-core run`, as if the shell had started it: its streams, terminal, signals and exit code.

The command is in our process group, so the terminal sends it Ctrl-C, Ctrl-\, Ctrl-Z and a new window size directly. A
signal that a process sends to us alone is passed on. `si_code` tells the two apart; it is read by waiting for blocked
signals, as a handler does not get it. A signal sent with kill(2) to the whole group reaches the command twice: a lost
SIGTERM would be worse.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from zeus_core.errors import ZeusError

_SI_KERNEL = 0x80  # <asm-generic/siginfo.h>
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # the exit codes of shells
_FROM_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP, signal.SIGCONT, signal.SIGWINCH}
_WAITED_FOR = {
    *(*_FROM_TERMINAL, signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGURG),
    *(signal.SIGIO, signal.SIGPWR, signal.SIGXCPU, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)),
}
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class CommandError(ZeusError):
    """The command could not be started; `exit_code` is what a shell returns then."""

    exit_code: int = _NOT_EXECUTABLE


class CommandNotFoundError(CommandError):
    """There is no such program."""

    exit_code: int = _NOT_FOUND


@contextmanager
def blocked_signals() -> Iterator[set[int]]:
    """Keep signals for `wait_for`. Yield the original signal mask, and restore it at the end.

    Signals that come after the command has ended are dropped.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would let the exit code vanish
    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    try:
        yield {int(number) for number in original_mask}
    finally:
        while signal.sigtimedwait(_WAITED_FOR, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, original_mask)


def spawn(command: Sequence[str], mask: set[int], environment: Mapping[str, str] = os.environ) -> int:
    """Start a command, and return its process id.

    Args:
        command: The name or path of the program, and its arguments.
        mask: The signals that are blocked when it starts.
        environment: Its environment.

    Raises:
        CommandError: There is no such program, or it cannot be executed.
    """
    name = command[0]
    environment = {key: value for key, value in environment.items() if key}  # Python refuses to pass on "=value"
    problem: OSError | None = None
    # A script without "#!" line is run by sh, as shells do.
    for words in ([*command], ["/bin/sh", shutil.which(name) or name, *command[1:]]):
        try:
            return os.posix_spawnp(words[0], words, environment, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON)
        except (FileNotFoundError, ValueError) as error:  # the latter of an empty name, or one with a NUL character
            raise CommandNotFoundError(f"{shlex.quote(name)}: command not found") from error
        except OSError as error:
            problem = error
            if error.errno != errno.ENOEXEC:
                break
    raise CommandError(f"{shlex.quote(name)}: cannot be executed: {problem and problem.strerror}") from problem


def wait_for(process_id: int) -> int:
    """Wait until the command has ended, pass signals on, and return its exit code; of a signal, the negative number."""
    while True:
        # A thread of a library that does not block SIGCHLD may have taken it: so we also look once a second.
        received = signal.sigtimedwait(_WAITED_FOR, 1.0)
        if received is not None and received.si_signo != signal.SIGCHLD:
            _pass_on(received, process_id)
            continue
        ended, status = os.waitpid(process_id, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _pass_on(received: signal.struct_siginfo, process_id: int) -> None:
    number = received.si_signo
    is_from_terminal = received.si_code == _SI_KERNEL and number in _FROM_TERMINAL
    # A terminal that goes away tells only the leader of the session.
    is_for_leader = number == signal.SIGHUP and os.getsid(0) == os.getpid()
    if not is_from_terminal or is_for_leader:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process_id, number)
    if number == signal.SIGTSTP:  # stop as it would have stopped us, until we are continued
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def end_like(code: int) -> int:
    """Return the exit code of a command; if a signal killed it, whose number is -code, die of the same signal."""
    if code >= 0:
        return code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.suppress(OSError, ValueError):  # the command's core file is the one of interest
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    return 128 - code  # signals do not kill the first process of a container
