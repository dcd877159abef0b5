"""How long others wait for a driver that hangs, and which threads do not wait longer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "CALL_SECONDS",
    "OPEN_SECONDS",
    "RESTORE_SECONDS",
    "SET_UP_SECONDS",
    "is_in_hook",
    "no_answer",
    "outside_of_hooks",
    "threads_in_hook",
]

# Readings take 0.05 to 5 ms, changes 5 to 10 ms, and under load a hundred times that has been seen. No later answer is
# of use, and a second is what training loses to a driver that hangs: once, see `ParallelCalls`.
CALL_SECONDS = 1.0
# For a restore, also in handlers of signals. Job managers kill a process 10 s (docker stop) to 30 s (Slurm, Kubernetes,
# torchrun) after SIGTERM; what is left of that is for saving a checkpoint.
RESTORE_SECONDS = 2.0
# For opening the driver. Without persistence mode it first initializes every board: about 20 s for eight.
OPEN_SECONDS = 60.0
# For a first look at an open GPU, which takes a third of a second at most, tries after passing faults included.
SET_UP_SECONDS = 5.0


threads_in_hook: set[int] = set()
"""The threads that wait no longer than `CALL_SECONDS` for a reading, by `get_ident`: training must go on.

A set, as each hook of each step enters and leaves it: that takes a fifth of the time of `threading.local`.
"""


@contextmanager
def outside_of_hooks() -> Iterator[None]:
    """Wait longer in a block: training will not go on, as in the handler of a signal that ends the process."""
    thread = threading.get_ident()
    was_in_hook = thread in threads_in_hook
    threads_in_hook.discard(thread)
    try:
        yield
    finally:
        if was_in_hook:
            threads_in_hook.add(thread)


def is_in_hook() -> bool:
    """Tell whether training waits for this thread, in a hook."""
    return threading.get_ident() in threads_in_hook


def no_answer(seconds: float) -> str:
    """Return the words for a driver that has not answered in time."""
    return (
        f"the driver has not answered within {seconds:g} s; look for NVRM and Xid in `dmesg`, and reset the GPU "
        "(`sudo nvidia-smi --gpu-reset`) or reboot if it stays so"
    )
